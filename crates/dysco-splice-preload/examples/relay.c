/* A small TCP relay that tells dyscod when it only moves bytes.
 *   cc -Iinclude examples/relay.c -L. -ldysco_splice_preload -o relay
 *   ./relay LISTEN_PORT SERVER_PORT [GREETING]
 * It takes one client, connects to the server on 127.0.0.1, may send the
 * server a greeting of its own (a delta), and then relays both ways. */
#include "../include/dysco.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in local(const char *port) {
    struct sockaddr_in a = {.sin_family = AF_INET};
    a.sin_port = htons((uint16_t)atoi(port));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

static int client_of(const char *port) {
    struct sockaddr_in a = local(port);
    int one = 1, l = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (l < 0 || bind(l, (void *)&a, sizeof a) || listen(l, 1)) return -1;
    puts("listening");
    fflush(stdout);
    int c = accept(l, NULL, NULL);
    close(l);
    return c;
}

static int server_at(const char *port) {
    struct sockaddr_in a = local(port);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    return s < 0 || connect(s, (void *)&a, sizeof a) ? -1 : s;
}

/* Moves once; 0 at the end of the stream or on an error. */
static int move(int from, int to) {
    char buf[16384];
    ssize_t n = recv(from, buf, sizeof buf, 0);
    if (n <= 0) return 0;
    for (ssize_t done = 0, w; done < n; done += w)
        if ((w = send(to, buf + done, n - done, MSG_NOSIGNAL)) < 0) return 0;
    return 1;
}

static void relay(int a, int b) {
    struct pollfd p[2] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}};
    while (p[0].fd >= 0 || p[1].fd >= 0) {
        if (poll(p, 2, -1) < 0 && errno != EINTR) return;
        for (int i = 0; i < 2; i++) {
            int to = i ? a : b;
            if (p[i].fd >= 0 && p[i].revents && !move(p[i].fd, to)) {
                shutdown(to, SHUT_WR); /* half-close: the other way goes on */
                p[i].fd = -1;
            }
        }
    }
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: relay LISTEN_PORT SERVER_PORT [GREETING]\n"), 2;
    const char *greeting = argc > 3 ? argv[3] : "";
    int a = client_of(argv[1]), b = server_at(argv[2]);
    if (a < 0 || b < 0) return perror("relay"), 1;
    if (send(b, greeting, strlen(greeting), 0) < 0) return perror("send"), 1;

    /* Nothing is relayed yet, so the greeting is all there is to tell. */
    if (dysco_splice(a, b, (int)strlen(greeting)) || dysco_splice(b, a, 0))
        perror("dysco_splice"); /* no dyscod: relay as ever */
    relay(a, b);
    close(a);
    close(b);
    return 0;
}
