"""The web studio: a small server on the loopback interface, and the pages it serves.

The pages are plain files under static/, one ES module per view, with no build step and nothing from elsewhere.
The lesson and the calculator need no server at all (`export` writes them as a static site); the views of models
and runs talk to the JSON API under /api, described at /api/openapi.json.
"""
