/* Cuts the power of one file system: nothing that is not on its disk by now will ever be.
 *
 * usage: power_cut MOUNT_POINT
 *
 * FS_IOC_SHUTDOWN without a flush of the log: what was not synced is gone after the next mount, as after a loss of
 * power. Needs root. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>

#define SHUTDOWN _IOR('X', 125, uint32_t)
#define WITHOUT_LOG_FLUSH 2

int main(int count, char **arguments) {
    uint32_t how = WITHOUT_LOG_FLUSH;
    int directory;
    if (count != 2 || (directory = open(arguments[1], O_RDONLY)) < 0 || ioctl(directory, SHUTDOWN, &how) != 0) {
        perror("power_cut");
        return 1;
    }
    return 0;
}
