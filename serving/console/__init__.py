"""Web console for operators at `/console` of every broker and, through a broker, of a gateway.

`pages` serves the files in `static/`: HTML, one style sheet and ES modules, without a build step. They use only the
REST API, with the permissions of the user. So this package does not depend on the broker. `docs/console.md` describes
the pages and the log-in.

    static/index.html     frame: navigation, and the place of the current page
    static/console.css    style sheet, light and dark
    static/js/app.js      start, and the router from `#/…` to pages
    static/js/dom.js      creation of elements, with text that is never HTML; `morph` updates the displayed elements
    static/js/api.js      REST client; keeps the credentials of the user
    static/js/live.js     pages that are kept up to date while they are visible
    static/js/parts.js    tables, tiles, marks of states; `graph.js` draws curves over time, `diff.js` compares texts
    static/js/go_to.js    the field that finds topics
    static/js/pages/      a file for each page
"""
