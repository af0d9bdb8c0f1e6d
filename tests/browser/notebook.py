"""A notebook in Jupyter Lab, driven as its reader does it: by menus, by keys, and by looking at the cells."""

import json

from playwright.sync_api import ElementHandle, Error, Page

from tests.browser.server import Lab

PANEL = "jupyterapp.shell.currentWidget"
LONGEST = 240_000  # milliseconds, for all cells of a lesson, on a machine that has other work
ATTEMPTS = 5  # to bring a cell into view, while Jupyter Lab still draws others
INTO_THE_WORK = 700  # milliseconds after a cell has begun, of the many seconds that it takes
# An execution ends with its reply, in whichever cell it is. Prompts and the kernel's state alone say nothing about a
# request that has not been sent yet.
COUNT_REPLIES = f"""() => {{
    window.asked = window.answered = 0;
    {PANEL}.sessionContext.session.anyMessage.connect((_, {{ msg }}) => {{
        window.asked += msg.header.msg_type === 'execute_request';
        window.answered += msg.header.msg_type === 'execute_reply';
    }});
}}"""
KERNEL_IS_IDLE = f"window.jupyterapp && {PANEL}?.sessionContext?.session?.kernel?.status === 'idle'"
IS_DONE = f"""before => asked > before && asked === answered && {KERNEL_IS_IDLE}
    && ![...{PANEL}.node.querySelectorAll('.jp-InputPrompt')].some(prompt => prompt.textContent.includes('*'))"""
IS_RUNNING = f"before => asked > before && {PANEL}.sessionContext.session.kernel.status === 'busy'"
NUMBER = f"text => {PANEL}.content.widgets.findIndex(cell => cell.model.sharedModel.getSource().includes(text))"
ELEMENT = f"number => {PANEL}.content.widgets[number].node"
ERRORS = f"""() => {PANEL}.content.widgets.filter(cell => cell.model.type === 'code').flatMap(
    cell => cell.model.outputs.toJSON().filter(each => each.output_type === 'error' || each.name === 'stderr'))"""
TOO_WIDE = """() => [...document.querySelectorAll('.jp-WindowedPanel-outer')]
    .filter(panel => panel.scrollWidth > panel.clientWidth).map(panel => panel.scrollWidth)"""


def use_theme(page: Page, lab: Lab, theme: str) -> None:
    """Sets Jupyter Lab's theme, for the pages that are opened next."""
    done = page.request.put(
        f"{lab.url}lab/api/settings/@jupyterlab/apputils-extension:themes",
        headers={"Authorization": f"token {lab.token}"},
        data={"raw": json.dumps({"theme": theme})},
    )
    assert done.ok, done.text()


class Notebook:
    """A notebook that is open in a page of its own, with its kernel.

    A cell is named by a piece of its source, the first cell that has it.
    """

    def __init__(self, page: Page, lab: Lab, path: str = "") -> None:
        """path: of the notebook in the repository; without one it is the page that `make lab` opens."""
        self.page = page
        page.goto(f"{lab.url}{f'lab/tree/{path}' if path else ''}?token={lab.token}{'&reset' if path else ''}")
        self._attach()

    def _attach(self) -> None:
        """Waits for the kernel of the notebook that is in front, and listens to it."""
        self.page.wait_for_function(KERNEL_IS_IDLE)
        self.page.evaluate(COUNT_REPLIES)

    def path(self) -> str:
        """Of the notebook that is in front."""
        return self.page.evaluate(f"{PANEL}.context.path")

    def follow(self, text: str, link: str) -> None:
        """Clicks a link in a cell, which opens another notebook."""
        here = self.path()
        found = self.cell(text).query_selector(f"a:has-text('{link}')")
        assert found is not None, link
        found.click()
        self.page.wait_for_function(f"here => {PANEL}?.context?.path !== here", arg=here)
        self._attach()

    def cell(self, text: str) -> ElementHandle:
        """The cell's element, with the cell scrolled into view."""
        number = self.page.evaluate(NUMBER, text)
        assert number >= 0, f"no cell has {text!r}"
        for left in reversed(range(ATTEMPTS)):
            self.page.evaluate(f"number => {PANEL}.content.scrollToItem(number, 'start')", number)
            found = self.page.evaluate_handle(ELEMENT, number).as_element()
            assert found is not None
            try:
                found.scroll_into_view_if_needed()
                break
            except Error:  # while it scrolled, Jupyter Lab has taken the cell out of the page
                if not left:
                    raise
        return found

    def select(self, text: str) -> None:
        """Selects a code cell in command mode."""
        prompt = self.cell(text).query_selector(".jp-InputPrompt")
        assert prompt is not None
        prompt.click()

    def menu(self, name: str, item: str) -> None:
        self.page.get_by_role("menuitem", name=name, exact=True).click()
        self.page.locator(".lm-Menu-itemLabel").get_by_text(item, exact=True).click()

    def asked(self) -> int:
        """How many executions have been asked for."""
        return self.page.evaluate("asked")

    def run_menu(self, item: str) -> None:
        """Runs what an entry of the Run menu says, and waits for the end."""
        before = self.asked()
        self.menu("Run", item)
        self.page.wait_for_function(IS_DONE, arg=before, timeout=LONGEST)

    def run(self, text: str) -> str:
        """Runs a cell by Ctrl+Enter, and waits for the end. Returns what it shows."""
        before = self.asked()
        self.select(text)
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_function(IS_DONE, arg=before, timeout=LONGEST)
        return self.shown(text)

    def interrupt(self, text: str) -> str:
        """Runs a cell, and interrupts it by I, I in the middle of its work. Returns what it shows."""
        before = self.asked()
        self.select(text)
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_function(IS_RUNNING, arg=before)
        self.page.wait_for_timeout(INTO_THE_WORK)
        self.page.keyboard.press("i")
        self.page.keyboard.press("i")
        self.page.wait_for_function(IS_DONE, arg=before, timeout=LONGEST)
        return self.shown(text)

    def write(self, text: str, source: str) -> None:
        """Replaces what is in a cell, as by pasting."""
        editor = self.cell(text).query_selector(".cm-content")
        assert editor is not None
        editor.click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(source)
        self.page.keyboard.press("Escape")
        assert self.page.evaluate(f"{PANEL}.content.activeCell.model.sharedModel.getSource()") == source

    def shown(self, text: str) -> str:
        """The text of a cell's outputs."""
        outputs = self.cell(text).query_selector(".jp-OutputArea")
        return outputs.text_content() or "" if outputs else ""

    def rows(self, text: str) -> list[list[str]]:
        """The table that a cell shows, row by row, without its header."""
        rows = self.cell(text).query_selector_all(".jp-OutputArea tbody tr")
        return [[(cell.text_content() or "").strip() for cell in row.query_selector_all("td")] for row in rows]

    def errors(self) -> list[dict]:
        """What cells have written to stderr, and the exceptions that they ended with."""
        return self.page.evaluate(ERRORS)

    def too_wide(self) -> list[int]:
        """The widths of what scrolls sideways as a whole."""
        return self.page.evaluate(TOO_WIDE)

    def save(self) -> None:
        self.page.keyboard.press("Control+S")
        self.page.wait_for_function(f"!{PANEL}.context.model.dirty")
