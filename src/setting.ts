/** What one setting is, and the units that bounds are written in. */

/** `name` is a lower-case word; `bytes` takes `25MiB`, `512KiB`, `1048576`; `duration` takes `250ms`, `30s`, `5m`, `24h`, `7d`. */
export type Kind = 'text' | 'name' | 'secret' | 'url' | 'path' | 'choice' | 'int' | 'bytes' | 'duration';

export interface Setting<K extends Kind = Kind> {
  readonly env: string;
  readonly kind: K;
  /** As it would be written in the environment. Empty: unset. */
  readonly fallback: string;
  readonly min?: number;
  readonly max?: number;
  readonly choices?: readonly string[];
  readonly group: string;
  readonly text: string;
}

export const setting = <K extends Kind>(
  group: string,
  env: string,
  kind: K,
  fallback: string,
  text: string,
  bounds: { min?: number; max?: number; choices?: readonly string[] } = {},
): Setting<K> => ({ group, env, kind, fallback, text, ...bounds });

export const minute = 60_000;
export const hour = 60 * minute;
export const day = 24 * hour;
export const mebi = 1024 ** 2;
export const gibi = 1024 ** 3;
