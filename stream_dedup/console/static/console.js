"use strict";
// Optional comforts, without which every page works: refresh Decisions and Now, submit Find with
// Ctrl+Enter, copy commands, scroll both texts of a decision together and step through differences.
(() => {
  const box = document.querySelector("[data-submit]");
  box?.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) box.form.requestSubmit();
  });
})();
(() => {
  const button = (text, act) => {
    const element = document.createElement("button");
    element.type = "button";
    element.textContent = text;
    element.addEventListener("click", () => act(element));
    return element;
  };
  for (const command of document.querySelectorAll(".command")) {
    if (!navigator.clipboard) break; // browsers provide it only over HTTPS and on localhost
    const copy = async (element) => {
      await navigator.clipboard.writeText(command.textContent);
      element.textContent = "Copied";
    };
    command.after(" ", button("Copy", copy));
  }
  const [left, right] = document.querySelectorAll(".sides .text");
  const steps = document.getElementById("steps");
  if (!right || !steps) return;
  let moved = null; // the side that this script scrolled; its scroll event is ignored
  const scrollTogether = (from, to) => from.addEventListener("scroll", () => {
    if (moved === from) { moved = null; return; }
    const share = from.scrollTop / Math.max(1, from.scrollHeight - from.clientHeight);
    const top = Math.round(share * (to.scrollHeight - to.clientHeight));
    if (Math.abs(to.scrollTop - top) > 1) { moved = to; to.scrollTop = top; }
  });
  scrollTogether(left, right);
  scrollTogether(right, left);
  const places = [...document.querySelectorAll(".sides del, .sides ins")];
  let current = -1;
  const step = (by) => {
    places[current]?.classList.remove("here");
    current = (current + by + places.length) % places.length;
    places[current].classList.add("here");
    places[current].scrollIntoView({ block: "center" });
  };
  if (places.length) steps.append(" ", button("Previous", () => step(current < 0 ? 0 : -1)), " ", button("Next", () => step(1)));
})();
(() => {
  const main = document.querySelector("main");
  const rows = document.querySelector("#rows[data-live]");
  const pause = document.getElementById("pause");
  const INTERVAL_MS = 1000 * Number(rows ? 2 : main.dataset.refresh);
  if (!INTERVAL_MS) return;
  const LIVE = "Updates every 2 s.";
  let paused = false;
  let wait = INTERVAL_MS;
  const showStatus = (text, isBad = false) => {
    const live = document.getElementById("live");
    live.replaceChildren(text);
    live.classList.toggle("level", isBad);
  };
  if (rows) {
    pause.hidden = false;
    showStatus(LIVE);
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
      pause.textContent = paused ? "Continue" : "Pause";
      showStatus(paused ? "Paused." : LIVE);
    });
  }
  // The page is not refreshed while an element in it has the focus, text is selected, or details are open.
  const isInUse = () => {
    const active = document.activeElement;
    return (active !== main && (rows ?? main).contains(active)) || String(getSelection()) || main.querySelector("details[open]:not(.fold)");
  };
  let refreshedAt = "";
  const replaceContents = (page) => {
    refreshedAt = new Date().toISOString().slice(11, 19);
    if (!page) return;
    if (!rows) return main.replaceChildren(...page.querySelector("main").childNodes);
    for (const id of ["notices", "count", "rows"]) document.getElementById(id).replaceChildren(...page.getElementById(id).childNodes);
    showStatus(LIVE);
  };
  const refresh = async () => {
    if (!paused && !document.hidden) {
      try {
        if (isInUse()) {
          showStatus("Updates are paused while an element has the focus, text is selected, or a section is open.");
        } else {
          // A frozen role accepts the request and never answers.
          const response = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(10000) });
          if (!response.ok) throw new Error(String(response.status));
          const page = new DOMParser().parseFromString(await response.text(), "text/html");
          if (!paused && !isInUse()) replaceContents(page);
        }
        wait = INTERVAL_MS;
      } catch {
        wait = Math.min(2 * wait, 30000);
        if (!paused) showStatus(`The console does not answer; the page shows the state of ${refreshedAt}Z.`, true);
      }
    }
    setTimeout(refresh, wait);
  };
  replaceContents(null);
  setTimeout(refresh, wait);
})();
