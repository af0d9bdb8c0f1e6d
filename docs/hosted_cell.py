# The first cell of a notebook on a hosted service, where nothing of the course is installed. Untested: the course is
# tested on machines that reach no such service.
#
# Choose the runtime first. One with a GPU (a T4 will do) has the Triton kernels and the CUDA graphs; one without is
# enough for every exercise. The network must be on. If a library was replaced that the notebook has imported already,
# the service asks for a restart: then run this cell again.
import subprocess
import sys

REPOSITORY = ""  # the address that you would give to `git clone`

if not REPOSITORY:
    raise SystemExit("REPOSITORY is empty: write the address of the course's repository into this cell")
subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", f"git+{REPOSITORY}"], check=True)
subprocess.run([sys.executable, "-m", "rosecourse", "doctor"], check=False)  # says what was found
