"""What is asked of a CUDA device, and in which order, watched on any machine; `engine/test_gpu.py` sees the device."""

from types import SimpleNamespace

import pytest
import torch

from rosecourse.kv import buffers

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)


@pytest.fixture
def log(monkeypatch):
    """What `buffers` asks of torch; all of it lands in this machine's memory."""
    log = []

    class Watched(torch.Tensor):
        def copy_(self, source, non_blocking=False):
            log.append(("copy", source.tolist(), non_blocking))
            return super().copy_(source)

        def to(self, device, non_blocking=False):
            log.append(("to", device, non_blocking))
            return self

    class Event:
        def record(self):
            log.append("record")

        def synchronize(self):
            log.append("wait")

    def made_by(make):
        def watched(values, dtype=None, device=None, pin_memory=False):
            log.append((make.__name__, values, dtype, device, pin_memory))
            return make(values, dtype=dtype).as_subclass(Watched)

        return watched

    makers = {make.__name__: made_by(make) for make in (torch.empty, torch.tensor, torch.zeros)}
    monkeypatch.setattr(buffers, "torch", SimpleNamespace(**makers, cuda=SimpleNamespace(Event=Event)))
    return log


def test_a_staging_buffer_waits_before_it_is_written_again(log):
    """Hazard 20: nobody writes to the host side while a copy from it may be in flight."""
    buffer = buffers.StagingBuffer(6, torch.int32, CUDA)
    assert log == [("zeros", 6, torch.int32, "cpu", True), ("zeros", 6, torch.int32, CUDA, False)]
    log.clear()
    buffer.host(2, 2)[:] = torch.tensor([[1, 2], [3, 4]])
    assert log == ["wait"]
    on_device = buffer.to_device()
    assert log == ["wait", ("copy", [1, 2, 3, 4], True), "record"]
    buffer.host(1, 3)[:] = 9
    assert log[3:] == ["wait"]
    assert on_device.tolist() == [[1, 2], [3, 4]]
    assert buffer.to_device().tolist() == [[9, 9, 9]]


def test_on_a_cpu_nothing_is_pinned_copied_or_waited_for(log):
    buffer = buffers.StagingBuffer(6, torch.int32, CPU)
    host = buffer.host(2, 3)
    assert buffer.to_device().data_ptr() == host.data_ptr()
    assert buffer.to_device().shape == (2, 3)
    assert buffers.index_tensor([3, 1], CPU).tolist() == [3, 1]
    assert log == [("zeros", 6, torch.int32, "cpu", False), ("tensor", [3, 1], None, CPU, False)]


def test_indices_and_a_pool_go_to_a_cuda_device_without_waiting(log):
    assert buffers.index_tensor([3, 1], CUDA).tolist() == [3, 1]
    shape = (1, 2, 1, 4, 3)
    keys, values = buffers.kv_pool(shape, torch.float16, CUDA)
    assert keys.data_ptr() != values.data_ptr()
    to = [("tensor", [3, 1], None, "cpu", True), ("to", CUDA, True)]
    assert log == [*to, *[("empty", shape, torch.float16, CUDA, False)] * 2]


def test_only_a_pool_in_host_memory_is_measured_by_it(log, monkeypatch):
    """At most all of it; what a GPU holds its allocator says."""
    shape = (1, 2, 1, 4, 3)
    monkeypatch.setattr(buffers, "host_memory", lambda: 2 * 24 * 2)
    buffers.kv_pool(shape, torch.float16, CPU)
    monkeypatch.setattr(buffers, "host_memory", lambda: 2 * 24 * 2 - 1)
    buffers.kv_pool(shape, torch.float16, CUDA)
    assert len(log) == 4
    with pytest.raises(buffers.ConfigError, match="2 KV blocks of 4 tokens do not fit into memory"):
        buffers.kv_pool(shape, torch.float16, CPU)


SIZES = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10}
HOSTS = [  # what the system tells, what the container's file says, and the bytes that there are
    ({"sysconf_names": SIZES, "sysconf": SIZES.get}, "4096\n", 4096),
    ({"sysconf_names": SIZES, "sysconf": SIZES.get}, "max\n", 40960),
    ({"sysconf_names": SIZES, "sysconf": SIZES.get}, "", 40960),
    ({"sysconf_names": {"SC_PAGE_SIZE": 1}}, "", float("inf")),
    ({}, "", float("inf")),
]


@pytest.mark.parametrize(("system", "says", "bytes_there"), HOSTS)
def test_the_memory_of_a_system_and_of_its_container(monkeypatch, tmp_path, system, says, bytes_there):
    limit = tmp_path / "memory.max"
    limit.write_text(says)
    monkeypatch.setattr(buffers, "os", SimpleNamespace(**system))
    monkeypatch.setattr(buffers, "CONTAINERS_LIMITS", [limit, tmp_path / "nowhere"])
    assert buffers.host_memory() == bytes_there
