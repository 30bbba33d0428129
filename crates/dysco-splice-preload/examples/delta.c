/* Says by how much a middlebox has changed the size of a session's stream:
 *   delta CLIENT PORT SERVER PORT TO_SERVER TO_CLIENT
 * Build: cc delta.c -I../include -ldysco_splice_preload */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/dysco.h"

static struct sockaddr_storage end(const char *ip, const char *port)
{
    struct sockaddr_storage at;
    struct sockaddr_in *v4 = (struct sockaddr_in *)&at;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&at;

    memset(&at, 0, sizeof(at));
    if (inet_pton(AF_INET, ip, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((unsigned short)atoi(port));
    } else if (inet_pton(AF_INET6, ip, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((unsigned short)atoi(port));
    }
    return at;
}

int main(int argc, char **argv)
{
    struct sockaddr_storage client, server;

    if (argc != 7)
        return 2;
    client = end(argv[1], argv[2]);
    server = end(argv[3], argv[4]);
    if (dysco_delta((struct sockaddr *)&client, (struct sockaddr *)&server,
                    atoi(argv[5]), atoi(argv[6])) == 0) {
        puts("told");
        return 0;
    }
    printf("errno %d\n", errno);
    return 1;
}
