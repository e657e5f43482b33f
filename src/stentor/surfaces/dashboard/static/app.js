// What pages do beyond links and forms: keys, live changes, tokens, questions before an action.
(() => {
  "use strict";
  const $ = (query, from = document) => from.querySelector(query);
  const all = (query, from = document) => [...from.querySelectorAll(query)];
  const here = $("nav.side [aria-current]");
  // On a phone the menu scrolls. Not with scrollIntoView, after which the first Tab would begin in the menu.
  if (here) $("nav.side").scrollLeft = here.offsetLeft - (innerWidth - here.offsetWidth) / 2;
  const tables = new ResizeObserver((entries) => entries.forEach(({ target }) => markClipped(target)));
  const markClipped = (box) => box.classList.toggle("clipped", box.scrollLeft + box.clientWidth + 2 < box.scrollWidth);
  const watchTables = () => all(".scroll").forEach((box) => { // a table that is wider than the screen says so
    tables.observe(box);
    box.onscroll = () => markClipped(box);
  });
  watchTables();
  document.addEventListener("htmx:afterSettle", watchTables);
  const inField = () => /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName || "");
  const typing = () => inField() && !/^(checkbox|radio)$/.test(document.activeElement.type); // a box takes no letters

  const REFRESH = 30_000; // milliseconds after which live parts are asked for even when nothing was heard
  const RECONNECT = 5_000; // milliseconds until a stream that was refused is asked for again

  // Live changes: at most one a second comes, and a part is asked for again only when the last answer is there.
  const live = $("#live");
  const busy = new WeakSet();
  const again = new WeakSet(); // a change that came meanwhile is not lost
  let pressed = null; // were it exchanged before the pointer lets go, the click would be lost
  const held = new Set(); // parts that wait for that
  const left = new Set(); // filters that do
  const paused = new Set(); // parts whose change waits until the reader has finished what they began in them
  const say = (text, state) => { live.textContent = text; live.className = `live ${state}`; live.title = paused.size && state.startsWith("on") ? "A change is shown after what you began here" : "Live updates"; };
  const sayLive = () => {
    paused.forEach((part) => { if (!part.isConnected) paused.delete(part); });
    if (paused.size) say("paused", "on paused"); else say("live", "on");
  };
  // The session has ended: the page stays, with what was typed into it.
  const askToSignIn = () => {
    if (!live || $("a", live)) return;
    say("signed out: ", "off");
    const href = `/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`;
    live.append(Object.assign(document.createElement("a"), { href, target: "_blank", textContent: "sign in" }));
  };
  document.addEventListener("htmx:afterRequest", ({ detail }) => { if (detail.xhr.status === 401) askToSignIn(); });
  const first = (select) => Math.max(0, [...select.options].findIndex((option) => option.defaultSelected));
  const touched = (field) => {
    if (field.tagName === "SELECT") return field.selectedIndex !== first(field);
    return /^(checkbox|radio)$/.test(field.type) ? field.checked !== field.defaultChecked : field.value !== field.defaultValue;
  };
  // What a reader typed, selected or made longer stays.
  const inUse = (part) => part.dataset.grown || part.contains(document.activeElement) && inField() || all("input, textarea, select", part).some(touched);
  const focusable = (part) => all("a, button, summary", part);
  const isLike = (one, other) => ["tagName", "href", "textContent"].every((name) => one[name] === other[name]) && one.form?.action === other.form?.action;
  // Each details element with its name, which stays when a row before it comes or goes and when a duration grows.
  const detailsOf = (part) => {
    const counts = {};
    return all("details", part).map((one) => {
      const summary = $("summary", one);
      const text = ($(".label, b", summary) || summary).textContent.replace(/\d+/g, "");
      return [`${text} ${counts[text] = (counts[text] || 0) + 1}`, one];
    });
  };
  const versions = new WeakMap(); // of what a part shows: the service does not send the same again
  const chosen = new WeakMap(); // what a reader chose in a part, until the moment when it is exchanged
  const refresh = async (part) => {
    if (busy.has(part)) { again.add(part); return; }
    if (part.contains(pressed)) { held.add(part); return; }
    if (document.hidden || inUse(part)) return;
    busy.add(part);
    try {
      const headers = { "X-Live": "1", ...(versions.has(part) && { "If-None-Match": versions.get(part) }) };
      await htmx.ajax("GET", part.dataset.src || location.pathname + location.search, { target: part, swap: "innerHTML", headers, source: part }); // its own: one for all would drop what waits
    } catch { /* the connection says so at the top */ } finally { busy.delete(part); }
    const { focused, at, open } = chosen.get(part) || { open: [] };
    chosen.delete(part);
    if (!inUse(part) && paused.delete(part) && live.className.includes("on")) sayLive();
    if (at) all("[data-row] a", part).find((a) => a.getAttribute("href") === at)?.closest("[data-row]").classList.add("at");
    for (const [name, one] of detailsOf(part)) if (open.includes(name)) one.open = true;
    const alike = focused && !focused.isConnected ? focusable(part).filter((one) => isLike(one, focused)) : [];
    if (alike.length === 1) alike[0].focus({ preventScroll: true }); // of several none: the wrong one would be pressed
    if (again.delete(part)) refresh(part);
  };
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { target, requestConfig, xhr, shouldSwap } = event.detail;
    if (shouldSwap) versions.delete(target.closest("[data-live]")); // a filter shows other rows
    if (!requestConfig.headers["X-Live"] || !shouldSwap) return;
    if (target.contains(pressed)) held.add(target);
    if (target.contains(pressed) || inUse(target)) { event.detail.shouldSwap = false; return; }
    if (xhr.getResponseHeader("ETag")) versions.set(target, xhr.getResponseHeader("ETag"));
    chosen.set(target, {
      focused: focusable(target).find((one) => one === document.activeElement),
      at: $("[data-row].at a", target)?.getAttribute("href"),
      open: detailsOf(target).filter(([, one]) => one.open).map(([name]) => name),
    });
  });
  const release = () => setTimeout(() => { // after the click
    pressed = null;
    const parts = [...held];
    held.clear();
    parts.forEach(refresh);
    const filters = [...left];
    left.clear();
    filters.forEach((field) => field.dispatchEvent(new Event("change", { bubbles: true })));
  });
  document.addEventListener("pointerdown", (event) => { pressed = event.target; });
  document.addEventListener("pointerup", release);
  document.addEventListener("pointercancel", release);
  document.addEventListener("pointermove", (event) => { if (pressed && !event.buttons) release(); }); // it let go elsewhere
  const listen = () => {
    let source = null;
    let since = document.hidden ? "" : `?since=${live.dataset.since}`; // the first time: what happened since the page was made
    const missed = () => { if (!document.hidden) all("[data-live]").forEach(refresh); };
    const changed = (event) => {
      const topics = JSON.parse(event.data).topics;
      if (!topics.length) return;
      for (const part of all("[data-live]")) {
        if (!part.dataset.live.split(" ").some((topic) => topics.includes(topic))) continue;
        if (inUse(part)) { paused.add(part); sayLive(); }
        refresh(part);
      }
      document.dispatchEvent(new CustomEvent("stentor:change", { detail: topics }));
    };
    const hear = () => {
      source = new EventSource(`/live${since}`);
      source.addEventListener("open", () => { if (!since || live.className.includes("off")) missed(); sayLive(); });
      source.addEventListener("change", changed);
      source.addEventListener("error", async ({ target }) => {
        if (!$("a", live)) say("not live", "off");
        if (target.readyState !== 2) return; // the browser tries again; after a refusal it does not, and says not why
        const answer = await fetch("/live", { headers: { Accept: "text/event-stream" } }).catch(() => null);
        answer?.body.cancel();
        if (answer?.status === 401) askToSignIn();
        else setTimeout(() => { if (target === source) hear(); }, RECONNECT); // a proxy answers 502 while the service restarts
      });
    };
    // A browser has six connections to a service: those of hidden pages would keep the next page from loading.
    const leave = () => { source?.close(); source = null; since = ""; };
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) leave(); else if (!source) hear();
    });
    addEventListener("pagehide", leave);
    if (!document.hidden) hear();
  };
  // A field that was emptied or left as it was: what waited for it is shown.
  const resume = () => setTimeout(() => paused.forEach((part) => { if (!inUse(part)) refresh(part); }));
  ["focusout", "change"].forEach((kind) => document.addEventListener(kind, resume));
  if (live) {
    listen();
    setInterval(() => all("[data-live]").forEach(refresh), REFRESH);
  }

  // Tokens of one task, until its end; then the part around it is asked for again.
  const streams = new Map(); // by the element that has the tokens
  const read = (place) => {
    const into = $(".tokens", place); // it outlives the part around it, which is asked for again
    if (streams.has(into)) return;
    const source = new EventSource(place.dataset.stream);
    streams.set(into, source);
    let waiting = "";
    const put = () => { into.append(waiting); waiting = ""; into.scrollTop = into.scrollHeight; };
    source.addEventListener("token", (event) => {
      if (!waiting) requestAnimationFrame(put);
      waiting += JSON.parse(event.data).text.replace(/[\u202a-\u202e\u2066-\u2069]/g, (sign) => `\\u${sign.charCodeAt(0).toString(16)}`); // as in the rest of the pages
    });
    const end = (event) => {
      if (!event.data) return; // a break of the connection; the browser takes it up again
      source.close();
      const part = into.closest("[data-live]");
      into.dispatchEvent(new CustomEvent("stentor:ended", { bubbles: true, detail: JSON.parse(event.data) }));
      if (part) refresh(part);
    };
    source.addEventListener("complete", end);
    source.addEventListener("error", end);
  };
  const readAll = () => {
    for (const [into, source] of streams) if (!into.isConnected) { source.close(); streams.delete(into); }
    all("[data-stream]").forEach(read);
  };
  readAll();
  document.addEventListener("htmx:afterSettle", readAll);
  addEventListener("pagehide", () => streams.forEach((source) => source.close()));
  document.addEventListener("htmx:beforeRequest", ({ detail: { target, requestConfig } }) => {
    const part = target.closest("[data-live]");
    if (target.matches("tr.more")) {
      if (part) part.dataset.grown = "1";
      remember({ pages: (history.state?.pages || 0) + 1 });
    } else if (target === part && !requestConfig.headers["X-Live"]) delete part.dataset.grown; // a filter reloads it from its first row
  });

  // A list that was made longer is as long again after "back", at the row that was opened.
  const remember = (values) => history.replaceState({ ...history.state, ...values }, "");
  document.addEventListener("click", ({ target }) => {
    const href = target.closest("[data-row] a")?.getAttribute("href");
    if (href && history.state?.pages) remember({ opened: href });
  });
  let before = null; // the row above a focused "Show more": the focus moves to the row that comes after it
  document.addEventListener("htmx:beforeSwap", ({ detail: { target } }) => {
    if (target.matches("tr.more") && target.contains(document.activeElement)) before = target.previousElementSibling;
  });
  document.addEventListener("htmx:afterSettle", () => {
    if (before) $("a", before.nextElementSibling || before)?.focus({ preventScroll: true });
    before = null;
  });
  const growAgain = async ({ pages, opened }) => {
    remember({ pages: 0 }); // each page counts itself
    for (let n = 0; n < pages; n += 1) {
      const link = $("tr.more a");
      if (!link) break;
      await htmx.ajax("GET", link.getAttribute("href"), { source: link, target: link.closest("tr"), swap: "outerHTML" });
    }
    const row = all("[data-row] a").find((a) => a.getAttribute("href") === opened)?.closest("[data-row]");
    row?.classList.add("at");
    row?.scrollIntoView({ block: "center" });
  };
  if (history.state?.pages) growAgain(history.state);

  // Forms: a question first, never twice, and no text is sent to a service that does not answer: the browser would
  // show an error of its own in place of the page, and the text would be lost.
  const asked = new WeakSet(); // forms for which the service was asked whether it answers
  const answering = new WeakSet(); // and answered
  const ANSWER = 10_000; // milliseconds that the service has for it
  const askFirst = async (form, submitter) => {
    asked.add(form);
    submitter?.setAttribute("aria-busy", "true"); // not disabled, which would take the focus from it
    $(":scope > .notice", form)?.remove();
    const answer = await fetch("/health", { cache: "no-store", signal: AbortSignal.timeout(ANSWER) }).catch(() => null);
    asked.delete(form);
    submitter?.removeAttribute("aria-busy");
    if (answer && ![502, 503, 504].includes(answer.status)) { // these are of a proxy
      answering.add(form);
      form.requestSubmit(submitter);
      answering.delete(form); // the form is not submitted if a field became invalid
      return;
    }
    const notice = Object.assign(document.createElement("p"), { className: "notice warn", role: "alert" });
    notice.textContent = "The service does not answer, so nothing was sent. What you wrote is still here.";
    form.append(notice);
  };
  document.addEventListener("submit", (event) => {
    const form = event.target;
    const isPost = form.method === "post" && !form.hasAttribute("hx-post");
    const isRepeated = answering.delete(form);
    if (asked.has(form) || !isRepeated && form.dataset.ask && !confirm(form.dataset.ask)) { event.preventDefault(); return; }
    if (isPost && !isRepeated && all("input, textarea", form).some(touched)) {
      event.preventDefault();
      askFirst(form, event.submitter);
    } else if (isPost) {
      setTimeout(() => [...form.elements].forEach((one) => { if (one.matches("button")) one.disabled = true; })); // some are outside of the form
    }
  });

  // A list that is searched while one types is up to date when the field is left: its rows stay under the pointer.
  // Other lists apply a text that was typed when the pointer that left its field is up again.
  document.addEventListener("change", (event) => {
    const { target } = event;
    if (target.matches("form[hx-trigger*='input changed'] [type=search]")) event.stopPropagation();
    else if (pressed && target.matches("form.filters input:is([type=search], :not([type]))")) {
      event.stopPropagation();
      left.add(target);
    }
  }, true);

  // Selection. The box for all is of no use without this program, so it is hidden until then.
  const countSelected = () => all("form.selected").forEach((form) => { // without this program the buttons are always on
    const boxes = [...form.elements].filter((one) => one.type === "checkbox" && one.name !== "all");
    const whole = form.elements.all?.checked;
    boxes.forEach((box) => { box.disabled = whole; });
    const n = boxes.filter((one) => one.checked).length;
    const { least = 1, most = Infinity } = form.dataset;
    all("button", form).forEach((button) => { button.disabled = !whole && (n < least || n > most); });
    all("[data-count]", form).forEach((text) => { text.textContent = whole ? "All selected" : `${n} selected${n >= most && boxes.length > most ? `, at most ${most}` : ""}`; });
  });
  const selectAll = () => {
    all("[data-select-all]").forEach((box) => { box.hidden = false; });
    countSelected();
  };
  selectAll();
  document.addEventListener("htmx:afterSettle", selectAll);
  window.addEventListener("pageshow", countSelected); // "back" restores the boxes
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-select-all]")) {
      all("[data-select]", event.target.closest("table")).forEach((box, n) => { box.checked = event.target.checked && n < (box.form?.dataset.most ?? Infinity); });
    }
    countSelected();
  });

  // Browsers have a clipboard on HTTPS and localhost only.
  if (navigator.clipboard) all("[data-action=copy]").forEach((button) => { button.hidden = false; });

  // Keys.
  const help = $("#help");
  const theme = () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("theme", next);
    document.documentElement.dataset.theme = next;
    document.dispatchEvent(new CustomEvent("stentor:theme"));
  };
  const move = (by) => {
    const rows = all("tr[data-row], li[data-row]");
    if (!rows.length) return;
    if (document.activeElement.closest("[data-row] a")) document.activeElement.blur(); // Enter opens the row
    const at = rows.findIndex((row) => row.classList.contains("at"));
    rows[at]?.classList.remove("at");
    const row = rows[Math.max(0, Math.min(rows.length - 1, at + by))];
    row.classList.add("at");
    row.scrollIntoView({ block: "nearest" });
  };
  let going = 0;
  const keys = {
    "/": () => ($("main input[type=search]") || $("#search")).focus(),
    "?": () => help.showModal(),
    j: () => move(1),
    k: () => move(-1),
    g: () => { going = Date.now(); },
    x: () => $("tr.at [data-select]")?.click(),
    b: () => $("form.selected button:enabled")?.focus(), // they are before the rows, far from the selected one
    Enter: () => $("tr.at a, li.at a")?.click(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "Escape") {
      const field = document.activeElement;
      const unfolded = field.closest("details.drop[open], .who[open]") || $(".who[open]");
      if (field.type === "search") event.preventDefault(); // the browser would clear it
      if (inField()) field.blur();
      if (unfolded) { unfolded.open = false; $("summary", unfolded).focus(); }
      return;
    }
    if (typing() || help?.open) return;
    if (event.key === "Enter" && document.activeElement !== document.body && document.activeElement?.id !== "main") return;
    if (Date.now() - going < 1500 && event.key !== "g") {
      going = 0;
      const link = $(`.side a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); return; }
    }
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  document.addEventListener("click", (event) => {
    const action = event.target.closest("[data-action]")?.dataset.action;
    if (action === "theme") theme();
    if (action === "copy") {
      const button = event.target.closest("button");
      navigator.clipboard.writeText($(".code", button.closest(".secret")).textContent).then(() => { button.textContent = "Copied"; }, () => { button.hidden = true; });
    }
    if (action === "stop") { // the service notices, and cancels the call
      const form = event.target.closest("form");
      htmx.trigger(form, "htmx:abort");
      form.replaceChildren("Stopped: this prompt is not a part of the conversation.");
    }
    if (action === "help") {
      $(".who[open]")?.removeAttribute("open");
      $(".who > summary").focus(); // to which the dialog returns
      help.showModal();
    }
    if (!event.target.closest(".who")) $(".who[open]")?.removeAttribute("open");
  });
})();
