/** How much longer a single picture takes from its upload until its owner learns that it is ready than its rendering alone. */
import { missingPictures } from '../pictures.ts';
import type { Row } from '../row.ts';
import { openSingles } from '../singles.ts';

export const row: Row = {
  name: 'ready',
  title: 'Time to ready beyond rendering, embedded',
  about:
    'The 40 mixed pictures, one at a time: from sending the upload until a long-poll tells `ready`, less the mean of two warm renders of the same file ' +
    'by a bare process of the same niceness and settings, one before and one after. The queue is in PostgreSQL, objects lie in a folder; all durable.',
  rounds: 5,
  missing: missingPictures,
  open: (scope, options) => openSingles(scope, options, { engines: 'embedded', p50Ms: 15, p95Ms: 40 }),
};
