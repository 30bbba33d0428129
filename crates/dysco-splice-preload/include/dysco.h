/* Taking middleboxes out of live TCP sessions: what they can say themselves.
 * Link with -ldysco_splice_preload, or run under it (LD_PRELOAD). */
#ifndef DYSCO_H
#define DYSCO_H

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

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

/* The same for a middlebox that has no sockets of the session, but sees its packets on
 * a host of the session's chain (on a TUN, by nfqueue), and rewrites the sequence
 * numbers of what follows bytes that it has put in or taken away.
 *
 * Tells dyscod of this host: from now on it changes the size of this session's stream
 * no more, and what it has put in or taken away so far is acknowledged. `to_server` is
 * the number of bytes it has put into what goes to the server since the session began,
 * negative if it has taken some away; `to_client` the same of what goes to the client.
 * `client` opened the session; both are a sockaddr_in or a sockaddr_in6.
 *
 * The session can lose this middlebox then; until it has, the middlebox has to go on
 * rewriting. A later call takes the place of this one.
 *
 * Waits for dyscod's answer, 5 seconds at most; by the socket of the local API, which is
 * DYSCO_API_SOCKET or /run/dysco/dyscod.sock. Only root may.
 *
 * Returns 0 when it is known, or -1 and errno:
 *   EAFNOSUPPORT  an address is of another family
 *   ENOENT        this host knows no such session
 *   ERANGE        it contradicts the session's sequence numbers, or the session does not
 *                 pass this host by a chain; dyscod's words are those of dyscoctl delta
 *   EACCES        this user may not
 *   EAGAIN        dyscod is busy
 *   ENOTCONN      no dyscod runs on this host
 *   ETIMEDOUT     dyscod has not answered
 *   EPROTO        dyscod is of another release
 */
int dysco_delta(const struct sockaddr *client, const struct sockaddr *server,
                int to_server, int to_client);

/* Asks a service of the session that `fd` is this program's end of, as
 * dyscoctl service call SESSION SERVICE VERB ARGUMENT does. `service` is the name alone,
 * such as "crypt", and `verb` its operation, such as "rekey". `argument` is a JSON value,
 * or NULL if the operation takes none.
 *
 * Writes the answer, a JSON value and a zero byte, to `answer`; what has no room in its
 * `size` bytes is left out. Root may ask, and a member of [api] group for sockets of its
 * own user. Waits as dysco_delta does.
 *
 * Returns the length of the whole answer without the zero byte, or -1 and errno:
 *   EBADF, ENOTSOCK, ENOTCONN
 *                 the descriptor is no connected socket, or no dyscod runs on this host
 *   EAFNOSUPPORT  it is no socket of IPv4 or IPv6
 *   EINVAL        a word is no name, or the argument is no JSON
 *   ENOENT        this host knows no such session
 *   EOPNOTSUPP    the session has no such service, or the service refuses
 *   EACCES, EAGAIN, ETIMEDOUT, EPROTO
 *                 as dysco_delta
 */
ssize_t dysco_service_call(int fd, const char *service, const char *verb,
                           const char *argument, char *answer, size_t size);

#ifdef __cplusplus
}
#endif
#endif
