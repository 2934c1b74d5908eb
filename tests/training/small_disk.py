"""Runs a module with a small file system mounted on a folder, and copies its content back.

python -m tests.training.small_disk FOLDER KB MODULE ARGUMENT …
"""

import os
import runpy
import shutil
import subprocess
import sys


def main(folder, size_kb, module, *arguments):
    kept = f"{folder}.kept"
    shutil.copytree(folder, kept)
    os.unshare(os.CLONE_NEWNS)  # mounts are only visible to this process
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", folder], check=True)
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    shutil.rmtree(kept)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        shutil.copytree(folder, kept)
        subprocess.run(["umount", "--lazy", folder], check=True)
        shutil.rmtree(folder)
        os.rename(kept, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
