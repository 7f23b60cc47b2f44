"use strict";
// Live rows on the page Decisions, a page Now that draws itself anew, Ctrl+Enter on Find, both
// texts of a decision scrolled together, from one difference to the next; everything works without this.
(() => {
  const box = document.querySelector("[data-submit]");
  box?.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) box.form.requestSubmit();
  });
})();
(() => {
  const button = (text, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", () => act(made));
    return made;
  };
  for (const command of document.querySelectorAll(".command")) {
    if (!navigator.clipboard) break; // a page that came over plain HTTP from elsewhere has none
    const copy = async (made) => {
      await navigator.clipboard.writeText(command.textContent);
      made.textContent = "Copied";
    };
    command.after(" ", button("Copy", copy));
  }
  const [left, right] = document.querySelectorAll(".sides .text");
  const steps = document.getElementById("steps");
  if (!right || !steps) return;
  let led = null; // the side that was moved by the other says nothing back
  const together = (from, to) => from.addEventListener("scroll", () => {
    if (led === from) { led = null; return; }
    const share = from.scrollTop / Math.max(1, from.scrollHeight - from.clientHeight);
    const top = Math.round(share * (to.scrollHeight - to.clientHeight));
    if (Math.abs(to.scrollTop - top) > 1) { led = to; to.scrollTop = top; }
  });
  together(left, right);
  together(right, left);
  const places = [...document.querySelectorAll(".sides del, .sides ins")];
  let at = -1;
  const step = (by) => {
    places[at]?.classList.remove("here");
    at = (at + by + places.length) % places.length;
    places[at].classList.add("here");
    places[at].scrollIntoView({ block: "center" });
  };
  if (places.length) steps.append(" ", button("Previous", () => step(at < 0 ? 0 : -1)), " ", button("Next", () => step(1)));
})();
(() => {
  const main = document.querySelector("main[data-refresh]");
  if (!main) return;
  const look = async () => {
    // Nothing is drawn anew from under the keyboard, a selection or an open table, nor fetched for a page that nobody sees.
    const used = main.contains(document.activeElement) || String(getSelection()) || main.querySelector("details[open]");
    if (!document.hidden && !used) {
      try {
        const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
        if (!answer.ok) throw new Error(String(answer.status));
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        main.replaceChildren(...page.querySelector("main").childNodes);
      } catch {
        const live = document.getElementById("live");
        if (live) live.textContent = "The console does not answer; these figures are old.";
      }
    }
    setTimeout(look, 1000 * Number(main.dataset.refresh));
  };
  setTimeout(look, 1000 * Number(main.dataset.refresh));
})();
(() => {
  const rows = document.getElementById("rows");
  const pause = document.getElementById("pause");
  const live = document.getElementById("live");
  if (!rows || !rows.dataset.live || !pause) return;
  const address = new URL(location.href);
  address.searchParams.set("part", "rows");
  let paused = false;
  let wait = 2000;
  pause.hidden = false;
  live.textContent = "Live.";
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
    live.textContent = paused ? "Paused." : "Live.";
  });
  const look = async () => {
    // Rows are not taken away from under the keyboard, nor fetched for a page that nobody sees.
    if (!paused && !document.hidden && !rows.contains(document.activeElement)) {
      try {
        const answer = await fetch(address, { headers: { Accept: "text/html" } });
        if (!answer.ok) throw new Error(String(answer.status));
        const text = await answer.text();
        if (!paused) rows.innerHTML = text; // escaped by the server, and the policy lets no script of it run
        if (wait !== 2000) live.textContent = "Live.";
        wait = 2000;
      } catch {
        wait = Math.min(2 * wait, 30000);
        if (!paused) live.textContent = "The console does not answer; it is asked again.";
      }
    }
    setTimeout(look, wait);
  };
  setTimeout(look, wait);
})();
