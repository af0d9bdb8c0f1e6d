"""HTML as a renderer shows it that allows no styles and runs no scripts, as GitHub does."""

from bs4 import BeautifulSoup


def stripped(html: str) -> BeautifulSoup:
    """HTML without styles, classes and scripts."""
    page = BeautifulSoup(html, "html.parser")
    for tag in page.find_all(["style", "script", "link"]):
        tag.decompose()
    for tag in page.find_all(True):
        tag.attrs = {name: value for name, value in tag.attrs.items() if name not in ("style", "class", "id")}
    return page
