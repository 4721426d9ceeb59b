"""The console: a page for people at `/console`, of every broker and, through it, of a gateway.

`pages` answers with the files in `static/`: HTML, one style sheet and ES modules as they were written; nothing is
built. They are a client of REST and of nothing else, so the console may what its user may over REST, and this folder
knows no topics. `docs/console.md` says what it shows, and how log-in works.

    static/index.html     the frame: navigation, and where a page goes
    static/console.css    all of the looks, light and dark
    static/js/app.js      begins; which page stands at which `#/…`
    static/js/dom.js      makes elements: text is always text, never HTML; and `morph`, which changes what is shown
    static/js/api.js      asks REST; keeps the credentials of who logged in
    static/js/pages/      a file for each page
"""
