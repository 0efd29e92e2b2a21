"""How a browser gets a page that asks for a token: a form that posts it.

The answer to the form is the page itself. So the token is in no address, which histories and logs keep, and in no
cookie, which other ports of the same host would get.
"""

import html
from urllib.parse import parse_qs

PAGE_PATH = "/page"
PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_FIELD = "token"
_REFUSED = '<p role="alert">That was not the token.</p>\n'


def token_form(path: str, *, title: str, label: str, where: str, again: bool = False) -> bytes:
    """Return the form that posts a token to `path`; `where` says where to find it, `again` that it was a wrong one."""
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; base-uri 'none'; form-action 'self'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>shardwise</title>
<h1>{html.escape(title)}</h1>
{_REFUSED if again else ""}<form method="post" action="{html.escape(path)}">
<p><label for="{_FIELD}">{html.escape(label)}</label></p>
<p><input id="{_FIELD}" name="{_FIELD}" type="password" autocomplete="off" required autofocus> <button>Show</button></p>
</form>
<p>{html.escape(where, quote=False)}</p>
</html>
""".encode()


def _form_of_a_run(*, again: bool) -> bytes:
    where = "The run directory's logs/status.json names the file that has it; in a cluster it is in the job's Secret."
    return token_form(PAGE_PATH, title="The page of a run", label="Its status token", where=where, again=again)


FORM, FORM_AGAIN = _form_of_a_run(again=False), _form_of_a_run(again=True)


def token_of(body: bytes) -> bytes:
    """Return the token in what the form has sent; nothing for anything else."""
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=1)
    except ValueError:
        return b""
    return fields.get(_FIELD, [""])[0].strip().encode()
