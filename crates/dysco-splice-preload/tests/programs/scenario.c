/* One process that is client, proxy and server at once, in a network namespace
 * of its own. It makes the calls a proxy would make; the test reads what the
 * shim says of them. Prints "a=FD b=FD ca=COOKIE cb=COOKIE" for each pair. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(x) ({ long r_ = (x); if (r_ < 0) { perror(#x); exit(1); } r_; })
#define IS(x, want) ({ long w_ = (want), g_ = (x); if (g_ != w_) { \
    fprintf(stderr, "%s: %ld, not %ld (%s)\n", #x, g_, w_, strerror(errno)); exit(1); } })
#define ENDLESS (1 << 30)

struct session { int client, a, b, server; };
static char buf[1 << 16];

static void network(void) {
    struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    MUST(unshare(CLONE_NEWNET));
    int s = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    MUST(ioctl(s, SIOCSIFFLAGS, &ifr));
    close(s);
}

static void connection(int *opened, int *accepted) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int l = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(l, (void *)&at, len));
    MUST(listen(l, 8));
    MUST(getsockname(l, (void *)&at, &len));
    *opened = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(*opened, (void *)&at, len));
    *accepted = MUST(accept4(l, NULL, NULL, SOCK_CLOEXEC));
    close(l);
}

static unsigned long long cookie(int fd) {
    unsigned long long c;
    socklen_t len = sizeof c;
    /* A filter may refuse it. */
    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &c, &len) ? 0 : c;
}

static struct session session(void) {
    struct session s;
    connection(&s.client, &s.a);
    connection(&s.b, &s.server);
    printf("a=%d b=%d ca=%llu cb=%llu\n", s.a, s.b, cookie(s.a), cookie(s.b));
    fflush(stdout);
    return s;
}

static void get(int fd, int n) { IS(recv(fd, buf, n, MSG_WAITALL), n); }
static void put(int fd, int n) { IS(send(fd, buf, n, MSG_NOSIGNAL), n); }

/* One move of n bytes as HAProxy makes it. */
static void move(int source, int from, int to, int sink, int pipe[2], int n, size_t len) {
    put(source, n);
    IS(splice(from, NULL, pipe[1], NULL, len, SPLICE_F_NONBLOCK), n);
    IS(splice(pipe[0], NULL, to, NULL, n, SPLICE_F_NONBLOCK), n);
    get(sink, n);
}

static void forward(struct session s, int p[2], int n) { move(s.client, s.a, s.b, s.server, p, n, ENDLESS); }
static void reverse(struct session s, int p[2], int n) { move(s.server, s.b, s.a, s.client, p, n, ENDLESS); }

/* A request by recv and send, with what the proxy adds to it. */
static void by_hand(int source, int from, int to, int sink, int n, int added) {
    put(source, n);
    get(from, n);
    put(to, n + added);
    get(sink, n + added);
}

static void tcp(void) {
    int p[2];
    struct session s = session();
    MUST(pipe(p));
    by_hand(s.client, s.a, s.b, s.server, 100, 28);
    forward(s, p, 1000);
    forward(s, p, 1000);
    by_hand(s.server, s.b, s.a, s.client, 50, 0);
    reverse(s, p, 70);
    reverse(s, p, 70);
    close(s.b);
    close(s.a);
}

static void peek(void) {
    int p[2];
    struct session s = session();
    struct iovec v = {buf, 10};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    MUST(pipe2(p, O_NONBLOCK));
    put(s.client, 158);
    IS(recv(s.a, buf, 158, MSG_PEEK | MSG_WAITALL), 158);
    IS(recvfrom(s.a, buf, 10, MSG_PEEK, NULL, NULL), 10);
    IS(recvmsg(s.a, &m, MSG_PEEK), 10);
    get(s.a, 38);                             /* a header, taken off */
    IS(recv(s.a, NULL, 20, MSG_TRUNC), 20);   /* drained */
    IS(read(s.a, buf, 60), 60);
    IS(write(s.b, buf, 60), 60);
    v.iov_len = 40;
    IS(readv(s.a, &v, 1), 40);
    IS(writev(s.b, &v, 1), 40);
    get(s.server, 100);
    forward(s, p, 500);
    forward(s, p, 500);
}

static void pooled(void) {
    int p[2];
    struct session s = session(), t = session();
    MUST(pipe(p));
    by_hand(t.client, t.a, t.b, t.server, 10, 5);
    for (int i = 0; i < 3; i++) {
        forward(s, p, 100 + i);
        reverse(t, p, 200 + i);
        forward(t, p, 300 + i);
        reverse(s, p, 400 + i);
    }
}

/* Keep-alive HTTP: bodies of known length, never endless. */
static void exact(void) {
    int p[2];
    struct session s = session();
    MUST(pipe(p));
    for (int i = 0; i < 20; i++) {
        by_hand(s.client, s.a, s.b, s.server, 80, 40);
        by_hand(s.server, s.b, s.a, s.client, 100, 20);
        move(s.server, s.b, s.a, s.client, p, 4000, 4000);
        move(s.client, s.a, s.b, s.server, p, 4000, 4000);
    }
}

/* Endless lengths, and yet a byte more each time. */
static void moving(void) {
    int p[2];
    struct session s = session();
    MUST(pipe(p));
    for (int i = 0; i < 5; i++) {
        forward(s, p, 1000);
        put(s.b, 1);
        get(s.server, 1);
    }
}

static void broken(void) {
    int p[2];
    struct session s = session();
    MUST(pipe(p));
    forward(s, p, 1000);
    forward(s, p, 1000);
    by_hand(s.client, s.a, s.b, s.server, 10, 0);
    shutdown(s.a, SHUT_RDWR);
}

static void aliased(void) {
    int p[2];
    struct session s = session();
    MUST(pipe(p));
    forward(s, p, 1000);
    forward(s, p, 1000);
    MUST(dup(s.a));
    for (int i = 0; i < 3; i++) forward(s, p, 1000);
}

static void *serve(void *);
static void idle(void);

/* A child in this process's memory closes its own descriptors of the same numbers. */
static void vforked(void) {
    int p[2], status;
    struct session s = session();
    MUST(pipe(p));
    forward(s, p, 1000);
    forward(s, p, 1000);
    pid_t child = vfork();
    if (!child) {
        closefrom(3);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0));
    by_hand(s.client, s.a, s.b, s.server, 10, 0);
}

/* The same child puts one of them elsewhere, for the program that it becomes. */
static void given(void) {
    int p[2], status;
    struct session s = session();
    MUST(pipe(p));
    forward(s, p, 1000);
    forward(s, p, 1000);
    pid_t child = vfork();
    if (!child) {
        dup2(s.a, 0);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0));
    idle();
}

/* A copy of the memory, made without libc: its descriptors are its own. */
static void copied(void) {
    struct session s = session();
    int status, child = MUST(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (!child) {
        serve(&s);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0));
    IS(status, 0);
}

/* Each makes the counters of a socket worth nothing. */
static void by_fcntl(struct session s) { MUST(fcntl(s.a, F_DUPFD_CLOEXEC, 50)); }
static void by_number(struct session s) {
    put(s.client, 5);
    IS(syscall(SYS_read, s.a, buf, 5), 5);
}
static void by_stdio(struct session s) {
    put(s.client, 5);
    IS(fgetc(fdopen(s.a, "r")), 0);
}
static void by_message(struct session s) {
    int ends[2];
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {buf, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control,
                       .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET,
                          .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(c), &s.a, sizeof(int));
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    IS(sendmsg(ends[0], &m, 0), 1);
}

static void unseen(void (*how)(struct session)) {
    int p[2];
    struct session s = session();
    MUST(pipe(p));
    forward(s, p, 1000);
    forward(s, p, 1000);
    how(s);
    for (int i = 0; i < 3; i++) forward(s, p, 1000);
}
static void dup_fcntl(void) { unseen(by_fcntl); }
static void raw_read(void) { unseen(by_number); }
static void stream(void) { unseen(by_stdio); }
static void message(void) { unseen(by_message); }

/* Many messages in one call are counted as they are. */
static void messages(void) {
    int p[2];
    struct session s = session();
    struct iovec v[2] = {{buf, 10}, {buf, 20}};
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = v, .msg_iovlen = 1}},
                           {.msg_hdr = {.msg_iov = v + 1, .msg_iovlen = 1}}};
    MUST(pipe(p));
    put(s.client, 30);
    IS(recvmmsg(s.a, m, 2, MSG_WAITALL, NULL), 2);
    IS(sendmmsg(s.b, m, 1, 0), 1);
    IS(pwritev2(s.b, v + 1, 1, -1, 0), 20);
    get(s.server, 30);
    put(s.client, 20);
    IS(preadv2(s.a, v + 1, 1, -1, 0), 20);
    forward(s, p, 1000);
    forward(s, p, 1000);
}

static void *serve(void *arg) {
    int p[2];
    struct session *s = arg;
    MUST(pipe(p));
    for (int i = 0; i < 3; i++) forward(*s, p, 1000);
    for (int i = 0; i < 3; i++) reverse(*s, p, 1000);
    return NULL;
}

/* Until the test closes our input. */
static void idle(void) {
    struct epoll_event ev;
    int e = MUST(epoll_create1(0));
    for (;;) {
        epoll_wait(e, &ev, 1, 5);
        struct pollfd in = {.fd = 0, .events = POLLIN};
        if (poll(&in, 1, 0) > 0) break;
    }
}

static void threads(void) {
    enum { N = 8 };
    struct session s[N];
    pthread_t t[N];
    for (int i = 0; i < N; i++) s[i] = session();
    for (int i = 0; i < N; i++) pthread_create(&t[i], NULL, serve, &s[i]);
    for (int i = 0; i < N; i++) pthread_join(t[i], NULL);
    idle();
}

/* Many threads with something to tell, all at once and again and again. */
static void *serve_many(void *arg) {
    struct session *s = arg;
    for (int i = 0; i < 64; i++) serve(&s[i]);
    return NULL;
}

static void contended(void) {
    enum { N = 4 };
    static struct session s[N][64];
    pthread_t t[N];
    for (int i = 0; i < N * 64; i++) s[i / 64][i % 64] = session();
    for (int i = 0; i < N; i++) pthread_create(&t[i], NULL, serve_many, s[i]);
    for (int i = 0; i < N; i++) pthread_join(t[i], NULL);
    idle();
}

static void forked(void) {
    struct session s = session();
    int status, child = MUST(fork());
    if (!child) {
        printf("child=%d\n", getpid());
        fflush(stdout);
        serve(&s);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0));
    IS(status, 0);
}

/* As a daemon does at its start; the shim's own descriptor stays. */
static void sweep(void) {
    for (int fd = 3; fd < 4096; fd++) close(fd);
    MUST(close_range(3, ~0U, 0));
    closefrom(3);
    tcp();
}

static void idle_pair(void) {
    struct session s = session();
    serve(&s);
    idle();
}

/* The descriptors below those of the pair are files: nothing of them is watched. */
static void with_files(void) {
    struct rlimit most = {4096, 4096};
    MUST(setrlimit(RLIMIT_NOFILE, &most));
    for (int i = 0; i < 600; i++) MUST(open("/dev/null", O_RDONLY));
    idle_pair();
}

/* A worker that seldom waits, and a master that often does, with one socket of the shim. */
static void worker(void) {
    int child = MUST(fork());
    if (child) {
        idle();
        MUST(waitpid(child, NULL, 0));
        return;
    }
    struct session s = session();
    serve(&s);
    for (struct pollfd in = {.fd = 0, .events = POLLIN}; poll(&in, 1, 1500) == 0;)
        ;
    _exit(0);
}

/* Two sessions, one after the other, on the same descriptors. */
static void again(void) {
    int p[2];
    MUST(pipe(p));
    for (int i = 0; i < 2; i++) {
        struct session s = session();
        for (int j = 0; j < 2; j++) forward(s, p, 1000);
        for (int j = 0; j < 2; j++) reverse(s, p, 1000);
        close(s.a);
        close(s.b);
        close(s.client);
        close(s.server);
    }
}

static void many(void) {
    for (int i = 0; i < 60; i++) {
        struct session s = session();
        serve(&s);
    }
    puts("done");
    fflush(stdout);
    idle();
}

/* The shim looks at its own descriptor before each report that it sends. */
static atomic_long tries;
int fstat(int fd, struct stat *st) {
    atomic_fetch_add(&tries, 1);
    return fstatat(fd, "", st, AT_EMPTY_PATH);
}

/* Nobody reads, and the program goes on and on; then one claim is broken. */
static void unread(void) {
    struct session s[60];
    struct epoll_event ev;
    int p[2], e = MUST(epoll_create1(0));
    MUST(pipe(p));
    for (int i = 0; i < 60; i++) {
        s[i] = session();
        serve(&s[i]);
    }
    for (int i = 0; i < 50; i++) epoll_wait(e, &ev, 1, 0);
    printf("first=%ld\n", tries);
    tries = 0;
    for (int i = 0; i < 2000; i++) {
        epoll_wait(e, &ev, 1, 0);
        forward(s[i % 60], p, 1);
    }
    printf("then=%ld\n", tries);
    by_hand(s[0].client, s[0].a, s[0].b, s[0].server, 10, 3);
    /* Nothing moves any more, and it is not to be taken for a claim that always does. */
    for (int i = 0; i < 400; i++) by_hand(s[0].client, s[0].a, s[0].b, s[0].server, 1, 0);
    puts("done");
    fflush(stdout);
    idle();
}

/* Prints how many descriptors from 3 on are open: sockets of the shim, and others. */
static void descriptors(void) {
    char path[64], to[64];
    int left = 0, sockets = 0;
    DIR *all = opendir("/proc/self/fd");
    for (struct dirent *one; (one = readdir(all));) {
        int fd = atoi(one->d_name);
        if (fd < 3 || fd == dirfd(all)) continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        int n = readlink(path, to, sizeof to - 1);
        if (fd >= 900 && n > 7 && !memcmp(to, "socket:", 7)) sockets++;
        else left++;
    }
    closedir(all);
    printf("left=%d sockets=%d\n", left, sockets);
    fflush(stdout);
}

/* As a daemon does at its start, after it has opened much. */
static void closes(void) {
    int p[2];
    struct session s = session();
    MUST(pipe(p));
    forward(s, p, 1000);
    forward(s, p, 1000);
    for (int i = 0; i < 600; i++) MUST(open("/dev/null", O_RDONLY));
    MUST(fcntl(0, F_DUPFD, 1020));
    closefrom(3);
    descriptors();
    tcp();
}

/* A call that closes nothing. */
static void keeps(long (*call)(void)) {
    int p[2];
    struct session s = session();
    MUST(pipe(p));
    forward(s, p, 1000);
    forward(s, p, 1000);
    IS(call(), -1);
    reverse(s, p, 1000);
    reverse(s, p, 1000);
    idle();
}
static long range(void) { return close_range(3, ~0U, 0); }
static long range_by_number(void) { return syscall(SYS_close_range, 3, ~0U, 0); }
static long range_by_flags(void) { return close_range(3, ~0U, 1 << 20); }
static void kept(void) { keeps(range); }
static void kept_by_number(void) { keeps(range_by_number); }
static void kept_by_flags(void) { keeps(range_by_flags); }

/* Another file gets the number of a socket of a pair. */
static void replaced(void) {
    int p[2], file = MUST(open("/dev/null", O_RDONLY));
    struct session s = session();
    MUST(pipe(p));
    forward(s, p, 1000);
    forward(s, p, 1000);
    MUST(syscall(SYS_dup3, file, s.b, 0));
    idle();
}

/* A filter of the calls that the shim makes. This program makes none of them afterwards. */
static struct sock_fprog filter(unsigned action) {
    static const int numbers[] = {
        SYS_socket, SYS_connect, SYS_sendto, SYS_sendmsg, SYS_getsockopt, SYS_fstat,
        SYS_newfstatat, SYS_getpid, SYS_mmap, SYS_munmap, SYS_madvise, SYS_fcntl, SYS_prlimit64,
        SYS_sched_yield, SYS_openat, SYS_getdents64, SYS_nanosleep, SYS_clock_nanosleep,
    };
    enum { N = sizeof numbers / sizeof *numbers };
    static struct sock_filter steps[N + 3];
    steps[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < N; i++)
        steps[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[i], N - i, 0);
    steps[N + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    steps[N + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
    return (struct sock_fprog){N + 3, steps};
}

static void shift(int source, int from, int to, int sink, int pipe[2]) {
    IS(write(source, buf, 100), 100);
    IS(splice(from, NULL, pipe[1], NULL, ENDLESS, SPLICE_F_NONBLOCK), 100);
    IS(splice(pipe[0], NULL, to, NULL, 100, SPLICE_F_NONBLOCK), 100);
    IS(read(sink, buf, sizeof buf), 100);
}

static void seals(long (*load)(struct sock_fprog *), unsigned action) {
    struct sock_fprog program = filter(action);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event ev;
    socklen_t len = sizeof at;
    int p[2], q[2], e = MUST(epoll_create1(0));
    struct session s = session(), t;
    MUST(pipe(p));
    forward(s, p, 1000);
    forward(s, p, 1000);
    connection(&t.client, &t.a);
    int l = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(l, (void *)&at, len));
    MUST(listen(l, 8));
    MUST(getsockname(l, (void *)&at, &len));
    t.b = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(t.b, (void *)&at, len));
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    /* A question, as libseccomp has it. */
    IS(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0), -1);
    MUST(load(&program));
    t.server = MUST(accept4(l, NULL, NULL, 0));
    MUST(pipe2(q, 0));
    for (int i = 0; i < 3; i++) {
        shift(s.server, s.b, s.a, s.client, p);
        shift(t.client, t.a, t.b, t.server, q);
        shift(t.server, t.b, t.a, t.client, q);
    }
    IS(write(s.a, buf, 10), 10);
    /* Long enough that the shim would look for a daemon. */
    for (int i = 0; i < 15; i++) epoll_wait(e, &ev, 1, 100);
    MUST(shutdown(t.a, SHUT_RDWR));
    MUST(dup2(s.b, t.b));
    for (int fd = 900; fd < 1100; fd++) close(fd);
    closefrom(3);
    puts("done");
    fflush(stdout);
}
static long by_prctl(struct sock_fprog *f) { return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, f, 0, 0); }
static long by_seccomp(struct sock_fprog *f) { return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, f); }
static void sealed(void) { seals(by_prctl, SECCOMP_RET_KILL_PROCESS); }
static void sealed_by_number(void) { seals(by_seccomp, SECCOMP_RET_KILL_PROCESS); }
static void sealed_softly(void) { seals(by_prctl, SECCOMP_RET_ERRNO | EPERM); }

/* An empty filter is none. */
static void unsealed(void) {
    struct sock_fprog none = {0, NULL};
    struct epoll_event ev;
    int p[2], e = MUST(epoll_create1(0));
    struct session s = session();
    MUST(pipe(p));
    forward(s, p, 1000);
    forward(s, p, 1000);
    IS(by_prctl(&none), -1);
    epoll_wait(e, &ev, 1, 0);
    reverse(s, p, 1000);
    reverse(s, p, 1000);
    idle();
}

/* Waits often enough that the shim looks for a daemon, with something to report. */
static void worked(void) {
    struct epoll_event ev;
    int e = MUST(epoll_create1(0));
    struct session s = session();
    for (int i = 0; i < 12; i++) {
        serve(&s);
        epoll_wait(e, &ev, 1, 100);
    }
}

static void wait_for(pid_t child) {
    int status;
    MUST(waitpid(child, &status, 0));
    IS(status, 0);
}

/* Programs that are started in each way list what they inherit. */
static void heirs(void) {
    char *args[] = {"program", "descriptors", NULL}, *none[] = {NULL}, *own = "/proc/self/exe";
    struct epoll_event ev;
    pid_t child;
    closefrom(3);
    for (int round = 0; round < 2; round++) {
        descriptors();
        if (!(child = fork())) execve(own, args, none), _exit(1);
        wait_for(child);
        if (!(child = vfork())) execve(own, args, none), _exit(1);
        wait_for(child);
        if (!(child = vfork())) {
            closefrom(3);
            execve(own, args, none);
            _exit(1);
        }
        wait_for(child);
        IS(posix_spawn(&child, own, NULL, NULL, args, none), 0);
        wait_for(child);
        /* Unseen by the shim, until it looks for its daemon. */
        for (int fd = 900; fd < 1100; fd++) syscall(SYS_close, fd);
        int e = MUST(epoll_create1(0));
        for (int i = 0; i < 25; i++) epoll_wait(e, &ev, 1, 100);
        close(e);
    }
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } all[] = {
        {"tcp", tcp}, {"peek", peek}, {"pooled", pooled}, {"exact", exact}, {"moving", moving},
        {"broken", broken}, {"aliased", aliased}, {"threads", threads}, {"forked", forked},
        {"sweep", sweep}, {"idle_pair", idle_pair}, {"many", many},
        {"vforked", vforked}, {"given", given}, {"copied", copied}, {"dup_fcntl", dup_fcntl},
        {"raw_read", raw_read}, {"stream", stream}, {"message", message}, {"messages", messages},
        {"contended", contended}, {"again", again}, {"unread", unread},
        {"with_files", with_files}, {"worker", worker}, {"closes", closes}, {"kept", kept},
        {"kept_by_number", kept_by_number}, {"kept_by_flags", kept_by_flags},
        {"replaced", replaced}, {"sealed", sealed}, {"sealed_by_number", sealed_by_number},
        {"sealed_softly", sealed_softly}, {"unsealed", unsealed}, {"worked", worked},
        {"heirs", heirs},
    };
    if (argc > 1 && !strcmp(argv[1], "descriptors")) return descriptors(), 0;
    network();
    for (size_t i = 0; argc > 1 && i < sizeof all / sizeof *all; i++)
        if (!strcmp(argv[1], all[i].name)) return all[i].run(), 0;
    return fprintf(stderr, "no such scenario\n"), 2;
}
