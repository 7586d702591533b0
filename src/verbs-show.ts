/** How verbs speak to people: tables, ages and sizes. Whatever came from elsewhere is made harmless for a terminal first. */

/** Columns as wide as their widest cell, two blanks apart; the first row is the head. A missing value is a dash. */
export function table(head: readonly string[], rows: readonly (readonly (string | number | null)[])[]): string {
  const cells = [head, ...rows].map((row) =>
    row.map((cell) => (cell === null || cell === '' ? '-' : plain(String(cell)))),
  );
  const widths = head.map((_name, column) => Math.max(...cells.map((row) => row[column]?.length ?? 0)));
  return cells
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

/** Names and values in two columns. */
export function pairs(rows: readonly (readonly [string, string])[]): string {
  const width = Math.max(...rows.map(([name]) => name.length));
  return rows.map(([name, value]) => `${name.padEnd(width)}  ${plain(value)}`.trimEnd()).join('\n');
}

// The detail of an error may hold what a user uploaded; a control character could repaint the terminal.
const plain = (text: string): string => text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, ' ');

/** A key of the storage, which others may have named: told so that it can be found, and so that it cannot repaint the terminal. */
export const escaped = (key: string): string =>
  key.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\\]/gu, (sign) =>
    sign === '\\' ? '\\\\' : `\\u{${sign.codePointAt(0)?.toString(16)}}`,
  );

/** `850 ms`, `12 s`, `7 min`, `5 h`, `9 d`. */
export function duration(ms: number): string {
  const steps = [
    [86_400_000, 'd'],
    [3_600_000, 'h'],
    [60_000, 'min'],
    [1000, 's'],
  ] as const;
  // From two of a unit on, so that nothing is told too coarsely.
  const [unitMs, unit] =
    steps.find(([size]) => ms >= 2 * size) ?? (ms >= 1000 ? ([1000, 's'] as const) : ([1, 'ms'] as const));
  return `${Math.floor(Math.max(0, ms) / unitMs)} ${unit}`;
}

export function size(bytes: number): string {
  for (const [unit, of] of [
    ['GiB', 1024 ** 3],
    ['MiB', 1024 ** 2],
    ['KiB', 1024],
  ] as const) {
    if (bytes >= of) return `${(bytes / of).toFixed(1)} ${unit}`;
  }
  return `${bytes} B`;
}

/** `1 job`, `2 jobs`. */
export const count = (amount: number, noun: string): string => `${amount} ${noun}${amount === 1 ? '' : 's'}`;

/** To the second, as in the log. */
export const time = (date: Date): string =>
  date
    .toISOString()
    .replace('T', ' ')
    .replace(/\.\d+Z$/, 'Z');
