/**
 * A bare loop around the plan of the driver: nothing but `renderPicture`, one picture after the other. No queue, no database, no
 * deadline, and no collecting of garbage between pictures, as a render child of the product does.
 */
import type { Job } from '../../src/drivers/images-protocol.ts';
import { renderPicture } from '../../src/drivers/images-render.ts';

process.on('disconnect', () => process.kill(process.pid, 'SIGKILL'));
process.on('message', async (job: Job) => {
  process.send?.({ kind: 'done', id: job.id, rssBytes: 0, rendering: await renderPicture(job) });
});
process.send?.({ kind: 'ready' });
