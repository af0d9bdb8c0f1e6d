"""Jane Austen's six novels as plain text, from the Debian package r-cran-janeaustenr.

    apt-get download r-cran-janeaustenr
    pip install rdata
    python training/corpus.py r-cran-janeaustenr_*.deb austen.txt

The novels are in the public domain; the package (MIT licence, Julia Silge) holds the Project Gutenberg texts as R data.
The text file has one paragraph a line and an empty line between chapters.
"""

from __future__ import annotations

import argparse
import gzip
import re
import subprocess
import tempfile
import zlib
from pathlib import Path

import rdata

HEADING = re.compile(r"^\s*(chapter|volume)\s+[0-9ivxlc]+\.?\s*$", re.IGNORECASE)
THE_END = re.compile(r"^\s*(the end|finis\.?|a note on the text)\s*$", re.IGNORECASE)


def from_r(data: bytes):
    return rdata.conversion.convert(rdata.parser.parse_data(data, extension=".rds"))


def read_novels(deb: Path) -> dict[str, list[str]]:
    """The lines of each novel. R stores each object of a data package as a length and a zlib stream."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
        data = Path(folder, "usr/lib/R/site-library/janeaustenr/data")
        index = from_r(gzip.decompress((data / "Rdata.rdx").read_bytes()))
        blob = (data / "Rdata.rdb").read_bytes()
    return {
        str(name): [str(line) for line in from_r(zlib.decompress(blob[start + 4 : start + size]))]
        for name, (start, size) in index["variables"].items()
    }


def chapters(lines: list[str]) -> list[list[str]]:
    """The novel's chapters, each a list of unwrapped paragraphs; what stands before the first chapter is left out."""
    found: list[list[str]] = []
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if THE_END.match(line):
            break
        if HEADING.match(line):
            found.append([])
        elif line.strip():
            paragraph.append(" ".join(line.split()))
        elif paragraph:
            if found:
                found[-1].append(" ".join(paragraph))
            paragraph = []
    return [chapter for chapter in found if chapter]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deb", type=Path, help="the Debian package file")
    parser.add_argument("text", type=Path, help="the text file to write")
    args = parser.parse_args()
    texts = []
    for name, lines in read_novels(args.deb).items():
        novel = chapters(lines)
        texts += ["\n".join(chapter) for chapter in novel]
        print(f"{name}: {len(novel)} chapters, {sum(map(len, texts[-len(novel) :])):,} characters")
    args.text.write_text("\n\n".join(texts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
