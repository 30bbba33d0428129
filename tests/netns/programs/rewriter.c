/* A relay of one session. It splices both ways, and from SIGUSR1 on it reads what the
 * client sends and passes it on in the other case. Between the two it does what the shim
 * cannot follow: `vfork`, a child in its memory closes all descriptors; `dupfd`, it goes
 * on by other numbers; `raw`, by system calls of its own; `child`, a process that it has
 * started goes on. arguments: HOW LISTEN-PORT SERVER-ADDRESS SERVER-PORT */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(x) ({ long r_ = (x); if (r_ < 0) { perror(#x); exit(1); } r_; })

static volatile sig_atomic_t told;
static int raw;
static char buf[1 << 16];

static void tell(int signal) { (void)signal; told = 1; }

static long call(long number, long a, long b, long c) {
#ifdef __x86_64__
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return r;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b,
                  x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
#else
#error "no system call by hand for this machine"
#endif
}

static long take(int fd) {
    return raw ? call(SYS_read, fd, (long)buf, sizeof buf) : read(fd, buf, sizeof buf);
}

static void give(int fd, long n) {
    for (long at = 0; at < n;) {
        long w = raw ? call(SYS_write, fd, (long)(buf + at), n - at) : write(fd, buf + at, n - at);
        if (w <= 0) exit(0);
        at += w;
    }
}

static void rewrite(int from, int to, int upper) {
    long n = take(from);
    if (n <= 0) exit(0);
    for (long i = 0; upper && i < n; i++) buf[i] ^= 0x20;
    give(to, n);
}

static void relay(int from, int to, int pipe[2]) {
    long n = splice(from, NULL, pipe[1], NULL, 1 << 30, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) exit(0);
    while (n > 0) n -= MUST(splice(pipe[0], NULL, to, NULL, n, SPLICE_F_MOVE));
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    struct sigaction action = {.sa_handler = tell};
    sigaction(SIGUSR1, &action, NULL);
    int listener = MUST(socket(AF_INET, SOCK_STREAM, 0)), one = 1;
    MUST(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    MUST(bind(listener, (void *)&at, sizeof at));
    MUST(listen(listener, 8));
    int client = MUST(accept(listener, NULL, NULL));
    int server = MUST(socket(AF_INET, SOCK_STREAM, 0));
    at.sin_port = htons(atoi(argv[4]));
    if (inet_pton(AF_INET, argv[3], &at.sin_addr) != 1) return 2;
    MUST(connect(server, (void *)&at, sizeof at));
    int up[2], down[2], rewrites = 0, status;
    MUST(pipe(up));
    MUST(pipe(down));
    for (;;) {
        struct pollfd both[2] = {{.fd = client, .events = POLLIN}, {.fd = server, .events = POLLIN}};
        int n = poll(both, 2, -1);
        if (told && !rewrites) {
            rewrites = 1;
            if (!strcmp(argv[1], "vfork")) {
                pid_t child = vfork();
                if (!child) {
                    closefrom(3);
                    _exit(0);
                }
                MUST(waitpid(child, &status, 0));
            } else if (!strcmp(argv[1], "dupfd")) {
                client = MUST(fcntl(client, F_DUPFD_CLOEXEC, 50));
                server = MUST(fcntl(server, F_DUPFD_CLOEXEC, 60));
            } else if (!strcmp(argv[1], "child")) {
                pid_t child = MUST(fork());
                if (child) {
                    MUST(waitpid(child, &status, 0));
                    return 0;
                }
            } else {
                raw = 1;
            }
            continue;
        }
        for (int i = 0; n > 0 && i < 2; i++) {
            if (!both[i].revents) continue;
            if (rewrites) rewrite(i ? server : client, i ? client : server, !i);
            else relay(i ? server : client, i ? client : server, i ? down : up);
        }
    }
}
