/** The entry of a render child process, started by `images-process.ts`: loads the codecs and serves renders. */
import { renderPicture } from './images-render.ts';
import { serveRenders } from './images-serve.ts';

serveRenders(renderPicture);
