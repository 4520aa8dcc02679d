// Evaluated in a page: texts and elements outside of it, texts that are cut off, texts that overlap.
() => {
  const width = document.documentElement.clientWidth, found = [];
  const named = (node) => `${node.tagName.toLowerCase()}.${node.getAttribute("class") ?? ""} "${node.textContent.trim().slice(0, 40)}"`;
  const style = new Map();
  const styled = (node) => style.get(node) ?? style.set(node, getComputedStyle(node)).get(node);
  const ancestors = (node) => { const all = []; for (let at = node; at && at !== document.body; at = at.parentElement) all.push(at); return all; };
  const scrolls = (node) => ["auto", "scroll"].includes(styled(node).overflowX);
  // hidden on purpose: for screen readers only, or folded
  const unseen = (node) => !node.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || ancestors(node).some((at) => styled(at).clipPath !== "none" || styled(at).opacity === "0");

  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.trim() || parent.closest("script, style, noscript, option, math, .plot-tip, .skip") || unseen(parent)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const above = ancestors(parent);
    const scroller = above.find(scrolls);
    for (const box of range.getClientRects()) {
      if (box.width < 1 || box.height < 1) continue;
      const one = { left: box.left + scrollX, right: box.right + scrollX, top: box.top + scrollY, bottom: box.bottom + scrollY, node, parent };
      if (scroller) { // only what is scrolled into view can overlap something
        const frame = scroller.getBoundingClientRect();
        for (const [side, low] of [["left", Math.max], ["right", Math.min]]) one[side] = low(one[side], frame[side] + scrollX);
        for (const [side, low] of [["top", Math.max], ["bottom", Math.min]]) one[side] = low(one[side], frame[side] + scrollY);
        if (one.right <= one.left || one.bottom <= one.top) continue;
      }
      texts.push(one);
      if (!scroller && (one.right > width + 1 || one.left < -1)) found.push(`outside the page: ${named(parent)} ends at ${Math.round(one.right)} of ${width}`);
      for (const at of above) {
        if (scrolls(at)) break;
        if (!["hidden", "clip"].includes(styled(at).overflowX)) continue;
        const frame = at.getBoundingClientRect();
        if (box.right > frame.right + 2 || box.left < frame.left - 2 || box.bottom > frame.bottom + 4 || box.top < frame.top - 4) found.push(`clipped: ${named(parent)} by ${named(at)}`);
      }
    }
  }
  // two texts on the same place; the bar at the top and the rail are fixed over the page
  const fixed = (one) => ancestors(one.parent).some((at) => ["sticky", "fixed"].includes(styled(at).position) && !at.matches(".stage, th"));
  const free = texts.filter((one) => !fixed(one)).sort((a, b) => a.top - b.top);
  free.forEach((a, i) => {
    for (let k = i + 1; k < free.length && free[k].top < a.bottom; k++) {
      const b = free[k];
      if (a.node === b.node || ancestors(a.parent).some(scrolls) !== ancestors(b.parent).some(scrolls)) continue;
      const [x, y] = [Math.min(a.right, b.right) - Math.max(a.left, b.left), Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)];
      if (x > 2 && y > 4) found.push(`overlapping: ${named(a.parent)} and ${named(b.parent)}`);
    }
  });
  for (const node of document.querySelectorAll("main *")) {
    const box = node.getBoundingClientRect();
    if (box.width < 2 || box.height < 2 || ancestors(node.parentElement).some(scrolls) || unseen(node)) continue;
    if (box.right > width + 1 || box.left < -1) found.push(`outside the page: ${named(node)} ends at ${Math.round(box.right)} of ${width}`);
  }
  return [...new Set(found)];
}
