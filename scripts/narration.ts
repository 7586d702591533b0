/** How a demonstration tells what happens: chapters, numbered sentences with the time since its start, and quoted lines. */

export interface Narration {
  chapter(title: string): void;
  say(text: string): void;
  /** Something that was read from the outside, put in below the last sentence. */
  quote(line: string): void;
}

export function createNarration(): Narration {
  const begunMs = performance.now();
  return {
    chapter: (title) => console.log(`\n${title}`),
    say(text) {
      console.log(`[${((performance.now() - begunMs) / 1000).toFixed(1).padStart(5)} s] ${text}`);
    },
    quote: (line) => console.log(`               ${line}`),
  };
}
