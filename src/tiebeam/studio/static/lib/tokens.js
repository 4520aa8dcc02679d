// Tokens as text: spaces and line ends are visible, other scripts stay as they are.
export const shownToken = (token) => (token.text === null || token.text === undefined ? `#${token.id}` : token.text.replaceAll(" ", "␣").replaceAll("\n", "⏎"));
