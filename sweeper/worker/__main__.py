"""The worker.  It answers requests that lie in folders, one process each, and this docstring is the contract.

``python -m sweeper.worker FOLDER``: one request, in this process, then exit.

    Reads     FOLDER/request.json   a Request (sweeper.trial)
    Writes    FOLDER/result.json    a Response; renamed into place, so it is there whole or not at all
    Inherits  stdout, stderr        free for anything to print on; never parsed
    Exits     0                     result.json is there, whatever it says
              anything else         no result; the driver reads the exit code

``python -m sweeper.worker --host FD [MODULE ...]``: imports torch once, and each MODULE that can be, then forks one
fresh process a request.  FD is a connected stream socket that carries one JSON object a line:

    host      {"ready": PID}                            torch is imported
    driver    {"run": FOLDER}                           an absolute path; one at a time
    host      {"started": PID}                          of the forked process, leader of its own process group
    host      {"ended": EXIT_CODE}                      as subprocess.returncode: negative is a signal

    The forked process keeps the contract above, with stdout and stderr in FOLDER.  When it has ended, whatever is left
    of its process group, or was orphaned by it, has been killed before "ended" is sent.  When the socket closes, the
    host kills what runs and exits; when the host dies, what runs dies with it.
"""

import os
import sys
from pathlib import Path

USAGE = "usage: python -m sweeper.worker FOLDER | --host FD [MODULE ...]"


def main(arguments: list[str]) -> int:
    # A file called random.py or torch.py in the user's folder must not shadow the real one while torch is imported;
    # the folder comes back when user code is loaded (``request.answer``).
    here = str(Path.cwd())
    sys.path[:] = [entry for entry in sys.path if entry not in ("", here)] if _installed() else sys.path
    match arguments:
        case ["--host", descriptor, *modules] if descriptor.isdigit():
            from sweeper.worker.host import serve

            serve(int(descriptor), modules)
            return 0
        case [folder] if not folder.startswith("-"):
            from sweeper.worker.host import die_with_parent
            from sweeper.worker.request import answer

            die_with_parent(os.getppid())
            answer(Path(folder))
            return 0
        case _:
            print(USAGE, file=sys.stderr)
            return 2


def _installed() -> bool:
    """Whether sweeper is found without the current folder on the path."""
    package = Path(__file__).resolve().parents[2]
    return package != Path.cwd() or str(package) in os.environ.get("PYTHONPATH", "").split(os.pathsep)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
