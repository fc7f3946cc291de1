/* A process that writes down every signal it gets, and holds what it is told to hold.
 * victim LOG CGROUP_PROCS UID HOW READY_FD [FILE...]
 * HOW: plain (SIGTERM ends it), deaf (SIGTERM is only written down), headless (deaf, and the leading thread ends), vfork (D state). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
static int log_fd;
static void heard(int number) {
    char line[8];
    int length = snprintf(line, sizeof line, "%d\n", number);
    if (write(log_fd, line, length) < 0) _exit(9);
}
static void *live(void *unused) {
    (void)unused;
    for (;;) pause();
    return NULL;
}
static void ready(const char *number) {
    if (write(atoi(number), "r", 1) < 0) _exit(8);
}
int main(int count, char **words) {
    if (count < 6) return 64;
    const char *how = words[4];
    FILE *procs = words[2][0] ? fopen(words[2], "w") : NULL;
    if (words[2][0] && (!procs || fprintf(procs, "0") < 0 || fclose(procs))) return 65;
    log_fd = open(words[1], O_WRONLY | O_CREAT | O_APPEND, 0666);
    struct sigaction note = { .sa_handler = heard, .sa_flags = SA_RESTART };
    for (int number = 1; number < 65; number++)
        if (strcmp(how, "plain") || number != SIGTERM) sigaction(number, &note, NULL);
    setsid();
    for (int at = 6; at < count; at++)
        if (open(words[at], O_RDWR) < 0) return 66;
    if (setuid(atoi(words[3]))) return 67;
    if (!strcmp(how, "headless")) {
        pthread_t thread;
        pthread_create(&thread, NULL, live, NULL);
        ready(words[5]);
        pthread_exit(NULL);
    }
    if (!strcmp(how, "vfork") && vfork() == 0) {
        for (int fd = 3; fd < 64; fd++)
            if (fd != log_fd && fd != atoi(words[5])) close(fd);
        ready(words[5]);
        for (;;) pause();
    }
    ready(words[5]);
    live(NULL);
}
