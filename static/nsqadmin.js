// Optional: all pages work without this script.
//
// - Live: fetches the page again in intervals, and replaces the elements with the attribute `data-live`.
// - Links with the attribute `data-dialog` show the page they lead to, a confirmation, in a dialog.
// - Plots show the value under the pointer, and the one chosen with the arrow keys, beside their captions. Where a field
//   takes a time, a click or Enter enters that of the value.
// - If nsqadmin does not answer, the page says so until it does.
// - The counter counts up between two fetches.

(() => {
  "use strict";

  const seconds = Number(document.body.dataset.refresh);
  const button = document.getElementById("live");
  const dialog = document.getElementById("dialog");
  const PAUSED = "nsqadmin.paused";
  let paused = localStorage.getItem(PAUSED) === "1";
  let failures = 0;
  let gone = false;

  // --- Live ---------------------------------------------------------------------------------------------------------

  function inUse(part) {
    const focused = document.activeElement;
    if (part.contains(focused) && focused.matches("input, select, textarea")) return true;
    // Ticked messages and unfolded bodies stay until they are unticked and folded.
    return part.querySelector("input:checked, details.body[open]") !== null;
  }

  function replaceLiveParts(fresh) {
    const parts = [...document.querySelectorAll("[data-live]")];
    // All parts show the same moment, so a part in use keeps the others.
    if (parts.some(inUse)) return;
    for (const part of parts) {
      const other = fresh.getElementById(part.id);
      if (other === null || part.innerHTML === other.innerHTML) continue;
      const open = [...part.querySelectorAll("details")].map((details) => details.open);
      const links = [...part.querySelectorAll("a, button, summary, .chart")];
      const focused = links.indexOf(document.activeElement);
      part.innerHTML = other.innerHTML;
      offerCopies(part);
      part.querySelectorAll("details").forEach((details, index) => { details.open = Boolean(open[index]); });
      preparePlots(part);
      if (focused >= 0) part.querySelectorAll("a, button, summary, .chart")[focused]?.focus({ preventScroll: true });
    }
    const counter = fresh.getElementById("counter");
    if (counter !== null) Object.assign(document.getElementById("counter").dataset, counter.dataset);
    showTimes(fresh.getElementById("shown-at"));
  }

  async function fetchPage() {
    // The second header: such a request is not one of the user, and does not keep a login alive.
    const headers = { Accept: "text/html", "X-Refresh": "1" };
    const answer = await fetch(location.href, { headers, signal: AbortSignal.timeout(15000) });
    // A redirect to the login page is not a newer version of this page.
    if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  }

  async function refresh() {
    try {
      const fresh = await fetchPage();
      // The user may have paused or opened a dialog in the meantime.
      if (!paused && !dialog.open) replaceLiveParts(fresh);
      failures = 0;
    } catch {
      failures += 1;
    }
    showState();
  }

  // --- nsqadmin itself ----------------------------------------------------------------------------------------------

  async function answers() {
    try {
      const answer = await fetch(document.body.dataset.ping, { cache: "no-store", signal: AbortSignal.timeout(10000) });
      return answer.ok && (await answer.text()) === "OK";
    } catch {
      return false;
    }
  }

  function showGone(now) {
    const notice = document.getElementById("gone");
    if (now && !gone) notice.querySelector("span").textContent = document.querySelector("#shown-at time").textContent;
    notice.hidden = !now;
    document.title = document.title.replace(/^(No answer: )?/, now ? "No answer: " : "");
    gone = now;
  }

  async function comeBack() {
    try {
      // An nsqadmin that was started again does not accept the tokens of forms that it had made before.
      const token = (await fetchPage()).querySelector("input[name=csrf]")?.value;
      if (token) for (const field of document.querySelectorAll("input[name=csrf]")) field.value = token;
    } catch {
      location.reload(); // it wants a login, or does not have this page any more
    }
  }

  async function check() {
    const wasGone = gone;
    if (wasGone || paused || dialog.open || !seconds) showGone(!(await answers()));
    if (gone) return;
    if (wasGone) await comeBack();
    if (!seconds || paused || dialog.open) return;
    await refresh();
    if (failures) showGone(!(await answers()));
  }

  // Links and buttons would lead to an error page of the browser, which does not come back by itself.
  for (const kind of ["click", "submit"]) {
    document.addEventListener(kind, (event) => {
      if (!gone || (kind === "click" && event.target.closest("a[href]") === null)) return;
      event.preventDefault();
      event.stopImmediatePropagation();
    }, true);
  }

  function showState() {
    button.setAttribute("aria-pressed", String(!paused && !failures));
    button.textContent = paused ? "Paused" : failures ? "No answer" : "Live";
    button.title = paused ? "Refresh this page automatically" : `Refreshed every ${seconds} seconds. Click to pause.`;
  }

  function schedule() {
    // After errors of a page the interval doubles, up to a minute.
    const wait = gone ? 2 : Math.min(60, (seconds || 5) * 2 ** Math.min(failures, 5));
    setTimeout(async () => { if (!document.hidden) await check(); schedule(); }, wait * 1000);
  }

  function showTimes(fresh) {
    if (fresh) document.getElementById("shown-at").innerHTML = fresh.innerHTML;
    for (const time of document.querySelectorAll("time[datetime]")) {
      const moment = new Date(time.dateTime);
      // A time of today is shown without the date; the title has both.
      const today = moment.toDateString() === new Date().toDateString();
      time.textContent = today ? moment.toLocaleTimeString() : moment.toLocaleString();
      time.title = moment.toLocaleString();
    }
  }

  if (seconds > 0) {
    button.hidden = false;
    button.addEventListener("click", () => {
      paused = !paused;
      localStorage.setItem(PAUSED, paused ? "1" : "0");
      showState();
      if (!paused) refresh();
    });
    showState();
  }
  schedule();
  showTimes();

  // --- Copying bodies -----------------------------------------------------------------------------------------------

  function offerCopies(root) {
    for (const each of root.querySelectorAll("[data-copy]")) each.hidden = false;
  }

  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy === null) return;
    const text = copy.closest("li").querySelector("pre").textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without HTTPS there is no clipboard API.
      const area = document.createElement("textarea");
      area.value = text;
      copy.after(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 2000);
  });

  offerCopies(document);

  // --- Confirmations ------------------------------------------------------------------------------------------------

  document.addEventListener("click", async (event) => {
    const link = event.target.closest("a[data-dialog]");
    if (link === null || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    try {
      const answer = await fetch(link.href, { headers: { Accept: "text/html" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const question = page.getElementById("confirm");
      if (question === null) throw new Error("no confirmation");
      dialog.replaceChildren(question);
      dialog.setAttribute("aria-label", question.querySelector("h1").textContent);
      dialog.showModal();
      dialog.querySelector("[data-cancel]").focus();
    } catch {
      location.href = link.href;
    }
  });

  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-cancel]")) {
      event.preventDefault();
      dialog.close();
    }
  });

  // --- Plots --------------------------------------------------------------------------------------------------------

  // How many readings before the newest one the keyboard's is.
  let back = 0;

  function showReading(plot, reading) {
    for (const other of plot.querySelectorAll(".shown")) other.classList.remove("shown");
    reading?.classList.add("shown");
    const text = reading?.firstElementChild.textContent ?? "";
    plot.closest("figure").querySelector("output").textContent = text;
    return text;
  }

  function showChosen(plot) {
    const readings = plot.querySelectorAll(".reading");
    back = Math.max(0, Math.min(back, readings.length - 1));
    const chosen = readings.length - 1 - back;
    plot.setAttribute("aria-valuenow", String(chosen));
    plot.setAttribute("aria-valuetext", showReading(plot, readings[chosen]));
  }

  // Only where a field takes the time of a reading.
  function pick(plot, reading) {
    const name = plot.closest("[data-picks]")?.dataset.picks;
    if (name === undefined || reading === null) return;
    document.querySelector(`input[name="${name}"]`).value = reading.dataset.at;
    plot.closest("figure").querySelector("output").textContent = `${reading.dataset.at} chosen`;
  }

  function preparePlots(part) {
    for (const plot of part.querySelectorAll(".chart")) {
      const last = plot.querySelectorAll(".reading").length - 1;
      if (last < 0) continue;
      const state = { role: "slider", tabindex: 0, "aria-valuemin": 0, "aria-valuemax": last, "aria-valuenow": last };
      for (const [name, value] of Object.entries(state)) plot.setAttribute(name, String(value));
      plot.setAttribute("aria-valuetext", plot.querySelector(".reading:last-of-type title").textContent);
      plot.addEventListener("focus", () => showChosen(plot));
      plot.addEventListener("blur", () => showReading(plot, null));
      plot.addEventListener("pointermove", (event) => showReading(plot, event.target.closest(".reading")));
      plot.addEventListener("pointerleave", () => showReading(plot, null));
      plot.addEventListener("click", (event) => pick(plot, event.target.closest(".reading")));
      plot.addEventListener("keydown", (event) => {
        if (event.key === "Enter") pick(plot, plot.querySelector(".reading.shown"));
        const moved = { ArrowLeft: back + 1, ArrowRight: back - 1, PageUp: back - 10, PageDown: back + 10, Home: last, End: 0 };
        if (!(event.key in moved)) return;
        event.preventDefault();
        back = moved[event.key];
        showChosen(plot);
      });
    }
  }
  preparePlots(document);
  for (const hint of document.querySelectorAll("[data-pick-hint]")) hint.hidden = false;

  // --- The counter --------------------------------------------------------------------------------------------------

  const counter = document.getElementById("counter");
  if (counter !== null && !matchMedia("(prefers-reduced-motion: reduce)").matches) {
    let shown = Number(counter.dataset.counter);
    let previous = performance.now();
    setInterval(() => {
      const now = performance.now();
      const elapsed = (now - previous) / 1000;
      previous = now;
      if (paused) return;
      if (counter.dataset.counter === "") { // not known, because no node answers
        counter.textContent = "–";
        return;
      }
      const known = Number(counter.dataset.counter);
      // Count at the known rate, and correct the difference to the known value within about a second.
      shown += Number(counter.dataset.rate) * elapsed;
      shown += (known - shown) * Math.min(1, elapsed);
      counter.textContent = Math.round(Math.max(shown, 0)).toLocaleString("en");
    }, 100);
  }

  // The form's button is for browsers without this script.
  document.querySelector(".timeframe select")?.addEventListener("change", (event) => event.target.form.submit());
})();
