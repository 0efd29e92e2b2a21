"""How a browser gets the page from a leader, which asks for a token: a form that posts it.

The answer to the form is the page itself. So the token is in no address, which histories and logs keep, and in no
cookie, which other ports of the same host would get.
"""

from urllib.parse import parse_qs

PAGE_PATH = "/page"
PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_FIELD = "token"
FORM = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; base-uri 'none'; form-action 'self'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>shardwise</title>
<h1>The page of a run</h1>
<form method="post" action="{PAGE_PATH}">
<p><label for="{_FIELD}">Its status token</label></p>
<p><input id="{_FIELD}" name="{_FIELD}" type="password" autocomplete="off" required autofocus> <button>Show</button></p>
</form>
<p>The run directory's logs/status.json names the file that has it; in a cluster it is in the job's Secret.</p>
</html>
""".encode()
FORM_AGAIN = FORM.replace(b"<form", b'<p role="alert">That was not the token.</p>\n<form')


def token_of(body: bytes) -> bytes:
    """Return the token in what the form has sent; nothing for anything else."""
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=1)
    except ValueError:
        return b""
    return fields.get(_FIELD, [""])[0].strip().encode()
