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


def test_indices_go_to_a_cuda_device_without_waiting(log):
    assert buffers.index_tensor([3, 1], CUDA).tolist() == [3, 1]
    assert log == [("tensor", [3, 1], None, "cpu", True), ("to", CUDA, True)]
