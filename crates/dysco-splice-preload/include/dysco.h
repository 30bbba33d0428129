/* Taking a proxy out of live TCP sessions: what a proxy can say itself.
 * Link with -ldysco_splice_preload, or run under it (LD_PRELOAD). */
#ifndef DYSCO_H
#define DYSCO_H

#ifdef __cplusplus
extern "C" {
#endif

/* Tells dyscod of this host: from now on this program moves every byte that it
 * reads from fd_in to fd_out, unchanged and in order. `delta` is the number of
 * bytes written to fd_out so far less those read from fd_in so far; bytes that
 * the program has read and still holds for fd_out count as written.
 *
 * Call it once for each direction. The session can lose this proxy when both
 * are told; then both sockets fail (read and write give an error) and are to be
 * closed as usual. Until then the program has to go on relaying. Closing either
 * descriptor takes the word back.
 *
 * Never waits. dyscod checks the delta against the kernel's own numbers.
 *
 * Returns 0 when dyscod was told, or -1 and errno:
 *   EBADF       a descriptor is not open
 *   ENOTSOCK    a descriptor is not a socket
 *   EPROTOTYPE  a descriptor is not a TCP socket
 *   EINVAL      both descriptors are the same
 *   EMFILE      a descriptor is out of the range that is watched (2^20)
 *   EAGAIN      dyscod is busy: told again by itself on the next call that waits
 *   ENOTCONN    no dyscod runs on this host: told again when one starts
 */
int dysco_splice(int fd_in, int fd_out, int delta);

#ifdef __cplusplus
}
#endif
#endif
