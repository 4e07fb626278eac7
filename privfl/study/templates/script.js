"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const order = (a, b) => {
        const [x, y] = [Number(a), Number(b)];
        return isNaN(x) || isNaN(y) ? a.localeCompare(b, "en", {numeric: true}) : x === y ? 0 : x < y ? -1 : 1;
      };
      body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * order(value(a), value(b))));
    });
  });
}
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);
let shown = null;
const show = point => {
  if (point === shown) return;
  if (shown) shown.classList.remove("near");
  shown = point;
  tip.hidden = !point;
  if (!point) return;
  point.classList.add("near");
  tip.textContent = point.getAttribute("aria-label");
  const box = point.getBoundingClientRect(), room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = Math.max(8, Math.min(box.left + box.width / 2 - tip.offsetWidth / 2, room)) + "px";
  tip.style.top = (box.top > tip.offsetHeight + 12 ? box.top - tip.offsetHeight - 8 : box.bottom + 8) + "px";
};
for (const chart of document.querySelectorAll("svg.chart")) {
  const points = [...chart.querySelectorAll(".point")];
  if (!points.length) continue;
  for (const point of points) point.querySelector("title").remove();
  points.forEach((point, number) => {
    point.setAttribute("tabindex", number ? "-1" : "0");
    point.addEventListener("focus", () => show(point));
    point.addEventListener("blur", () => show(null));
    point.addEventListener("keydown", event => {
      const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
      if (event.key === "Escape") show(null);
      if (!step) return;
      event.preventDefault();
      const next = points[(number + step + points.length) % points.length];
      point.setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  });
  chart.addEventListener("pointermove", event => {
    let best = null, least = 24;
    for (const point of points) {
      const box = point.getBoundingClientRect();
      const away = Math.hypot(box.left + box.width / 2 - event.clientX, box.top + box.height / 2 - event.clientY);
      if (away < least) [best, least] = [point, away];
    }
    show(best);
  });
  chart.addEventListener("pointerleave", () => show(null));
}
document.addEventListener("scroll", () => show(null), {passive: true, capture: true});
for (const details of document.querySelectorAll("details.printed")) {
  addEventListener("beforeprint", () => { details.dataset.was = details.open; details.open = true; });
  addEventListener("afterprint", () => { details.open = details.dataset.was === "true"; });
}
