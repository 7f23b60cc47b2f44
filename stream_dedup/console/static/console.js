"use strict";
// Live rows on the page Decisions; everything else works without this.
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
