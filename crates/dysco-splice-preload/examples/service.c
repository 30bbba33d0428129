/* Connects to a server and asks a service of the session:
 *   service ADDRESS PORT SERVICE VERB [ARGUMENT]
 * Build: cc service.c -I../include -ldysco_splice_preload */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/dysco.h"

int main(int argc, char **argv)
{
    struct sockaddr_in server;
    char answer[64];
    ssize_t length;
    int fd;

    if (argc < 5)
        return 2;
    memset(&server, 0, sizeof(server));
    server.sin_family = AF_INET;
    server.sin_port = htons((unsigned short)atoi(argv[2]));
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (inet_pton(AF_INET, argv[1], &server.sin_addr) != 1 ||
        connect(fd, (struct sockaddr *)&server, sizeof(server)) != 0)
        return 3;
    length = dysco_service_call(fd, argv[3], argv[4], argv[5], answer, sizeof(answer));
    if (length < 0) {
        printf("errno %d\n", errno);
        return 1;
    }
    printf("%zd %s\n", length, answer);
    return 0;
}
