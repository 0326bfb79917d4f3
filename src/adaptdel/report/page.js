(() => {
  "use strict";
  const bar = document.querySelector(".filter");
  if (!bar) return;
  const inputs = [...document.querySelectorAll(".input")];
  const [words, kind, toggle, count] = ["input", "select", "button", "output"].map((name) => bar.querySelector(name));
  const show = () => {
    const wanted = words.value.trim().toLowerCase();
    let shown = 0;
    for (const input of inputs) {
      const fits = input.dataset.kinds.split(" ").includes(kind.value) && input.textContent.toLowerCase().includes(wanted);
      input.hidden = !fits;
      shown += fits;
    }
    count.textContent = `${shown} of ${inputs.length} shown`;
  };
  words.addEventListener("input", show);
  kind.addEventListener("change", show);
  toggle.addEventListener("click", () => {
    const open = toggle.textContent === "Open all";
    for (const input of inputs) input.open = open;
    toggle.textContent = open ? "Close all" : "Open all";
  });
  bar.hidden = false;
  show();
})();
