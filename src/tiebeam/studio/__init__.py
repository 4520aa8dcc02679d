"""The web studio: a local HTTP server on the loopback interface and the pages it serves.

The pages are plain files under static/, one ES module per view, with no build step and no external resources. The
lesson and the calculator need no server (`pages.export` writes them as a static site). The views of models and runs use
the JSON API under /api, described at /api/openapi.json.
"""
