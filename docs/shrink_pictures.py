"""Make the pictures in executed notebooks smaller: a palette of 256 colours is enough for plots.

python docs/shrink_pictures.py notebooks/*.ipynb
"""

import base64
import io
import json
import sys
from pathlib import Path

from PIL import Image


def smaller(png: bytes) -> bytes:
    """The same picture in a palette, unless that is no smaller."""
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return min(buffer.getvalue(), png, key=len)


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            for output in cell.get("outputs", []):
                data = output.get("data", {})
                if "image/png" in data:
                    data["image/png"] = base64.b64encode(smaller(base64.b64decode(data["image/png"]))).decode() + "\n"
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
