"use strict";
// The pages Decisions and Now that draw themselves anew, Ctrl+Enter on Find, both
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
  const main = document.querySelector("main");
  const rows = document.querySelector("#rows[data-live]");
  const pause = document.getElementById("pause");
  const every = 1000 * Number(rows ? 2 : main.dataset.refresh);
  if (!every) return;
  const LIVE = "Updates every 2 s.";
  let paused = false;
  let wait = every;
  const say = (text, isBad = false) => {
    const live = document.getElementById("live");
    live.replaceChildren(text);
    live.classList.toggle("level", isBad);
  };
  if (rows) {
    pause.hidden = false;
    say(LIVE);
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
      pause.textContent = paused ? "Continue" : "Pause";
      say(paused ? "Paused." : LIVE);
    });
  }
  // Nothing is drawn anew from under the keyboard, a selection or an open table; a click on the page itself holds nothing.
  const held = () => {
    const active = document.activeElement;
    return (active !== main && (rows ?? main).contains(active)) || String(getSelection()) || main.querySelector("details[open]:not(.fold)");
  };
  let drawn = "";
  const draw = (page) => {
    drawn = new Date().toISOString().slice(11, 19);
    if (!page) return;
    if (!rows) return main.replaceChildren(...page.querySelector("main").childNodes);
    for (const id of ["notices", "rows"]) document.getElementById(id).replaceChildren(...page.getElementById(id).childNodes);
    say(LIVE);
  };
  const look = async () => {
    if (!paused && !document.hidden) {
      try {
        if (held()) {
          say("No updates while something here has the focus, is selected or is open.");
        } else {
          // A role that is frozen takes the question and never answers.
          const answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(10000) });
          if (!answer.ok) throw new Error(String(answer.status));
          const page = new DOMParser().parseFromString(await answer.text(), "text/html");
          if (!paused && !held()) draw(page);
        }
        wait = every;
      } catch {
        wait = Math.min(2 * wait, 30000);
        if (!paused) say(`The console does not answer; this is the state of ${drawn}Z.`, true);
      }
    }
    setTimeout(look, wait);
  };
  draw(null);
  setTimeout(look, wait);
})();
