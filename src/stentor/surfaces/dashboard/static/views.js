// Views of a list: its address under a name, kept in this browser.
(() => {
  "use strict";
  const place = document.querySelector("[data-views]");
  const store = `views ${location.pathname}`;
  const read = () => { try { return JSON.parse(localStorage.getItem(store)) || {}; } catch { return {}; } };
  const change = (act) => { // of what is saved now: another tab may have saved since
    const views = read();
    act(views);
    localStorage.setItem(store, JSON.stringify(views));
    show();
  };
  const button = (text, label, act) => {
    const made = Object.assign(document.createElement("button"), { type: "button", textContent: text });
    made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  };
  const ask = (given) => { // a name that is free, or whose view may be replaced
    const name = prompt("Name of the view", given)?.trim().slice(0, 60);
    return name && (name === given || !Object.hasOwn(read(), name) || confirm(`Replace the view ${name}?`)) ? name : "";
  };
  const here = () => {
    const given = [...new URLSearchParams(location.search)].filter(([name, value]) => value && !["notice", "cursor"].includes(name));
    return new URLSearchParams(given).toString();
  };
  const show = () => {
    const views = read();
    const now = here();
    const entries = Object.entries(views).map(([name, query]) => {
      const entry = document.createElement("span");
      const link = Object.assign(document.createElement("a"), { href: `${location.pathname}?${query}`, textContent: name });
      if (query === now) link.setAttribute("aria-current", "true");
      entry.append(link, button("✎", `Rename the view ${name}`, () => {
        const wanted = ask(name);
        if (wanted && wanted !== name) change((saved) => { delete saved[name]; saved[wanted] = query; });
      }), button("×", `Remove the view ${name}`, () => change((saved) => delete saved[name])));
      return entry;
    });
    if (now && !Object.values(views).includes(now)) {
      entries.push(button("Save this view", "Save this view", () => {
        const name = ask("");
        if (name) change((saved) => { saved[name] = now; });
      }));
    }
    place.replaceChildren(...entries);
    place.hidden = !entries.length;
  };
  show();
  document.addEventListener("htmx:pushedIntoHistory", show);
  addEventListener("popstate", show);
  addEventListener("storage", show);
})();
