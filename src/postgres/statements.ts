/**
 * Prepared statements: a name for each text, by which a connection parses and plans it once and not at each call.
 *
 * The name is made of the text, so all connections, processes and builds agree on it, and a pooler between them can tell texts
 * apart. Texts are written in the code and are about a hundred; should one ever be built with changing parts, the bound keeps it
 * from filling the memory of every session: what comes after it is sent without a name, slower and as right.
 */
import { createHash } from 'node:crypto';

export const namedMax = 200;

const names = new Map<string, string>();

/**
 * What the driver sends. A text without values goes plain, by the protocol that also knows several statements in one text:
 * BEGIN, COMMIT, LISTEN and the making of tables are such.
 */
export function asStatement(text: string, values: readonly unknown[] = []) {
  if (values.length === 0) return { text };
  const name = nameOf(text);
  return name === undefined ? { text, values: [...values] } : { name, text, values: [...values] };
}

function nameOf(text: string): string | undefined {
  const known = names.get(text);
  if (known !== undefined || names.size >= namedMax) return known;
  const name = `skrepka_${createHash('sha256').update(text).digest('hex').slice(0, 16)}`;
  names.set(text, name);
  return name;
}

/** The codes of PostgreSQL for a name that the session does not know, or that it has given away already. */
const nameCodes = ['26000', '42P05'];

/**
 * The session's prepared statement cannot be used: a migration changed what it answers (`select *` of a table that has one
 * column more), or somebody between us and the session mixed sessions up. PostgreSQL says so before it runs anything.
 */
export function isStale(error: unknown): boolean {
  const { code, routine } = (error ?? {}) as { code?: unknown; routine?: unknown };
  if (typeof code !== 'string') return false;
  // 0A000 is said of much else; the text is translated, the place in the server's source is not.
  return nameCodes.includes(code) || (code === '0A000' && routine === 'RevalidateCachedQuery');
}
