"""A model's texts over HTTP, in the form of OpenAI's API: requests, texts in the making, the thread that makes them."""
