/* SPDX-License-Identifier: BSD-3-Clause */
/* The descriptors of this process (berth/_in_place.py). */
#include <fcntl.h>
#include <sys/stat.h>

#include "adapters/python/native/native.h"

/* How many descriptors the kernel's table has room for: all numbers are below. 0: not known. */
static int table_size(void)
{
    int n = 0;
    char line[128];
    FILE *status = fopen("/proc/self/status", "re");
    while (status && n == 0 && fgets(line, sizeof line, status))
        if (strncmp(line, "FDSize:", 7) == 0)
            n = (int)strtol(line + 7, NULL, 10);
    if (status)
        (void)fclose(status);
    return n;
}

/*
 * is_open_for_writing(device, inode). Each number is tried: the kernel lists /proc/self/fd six
 * times slower. Nothing is opened, so that other threads may open and close theirs.
 */
PyObject *bpy_is_open_for_writing(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned long long device, inode;
    bool found = false;
    if (!PyArg_ParseTuple(arguments, "KK", &device, &inode))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    int n = table_size();
    for (int fd = 0; fd < n && !found; fd++) {
        struct stat there;
        int flags = fcntl(fd, F_GETFL);
        found = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && fstat(fd, &there) == 0 &&
                there.st_dev == device && there.st_ino == inode;
    }
    Py_END_ALLOW_THREADS;
    return PyBool_FromLong(found);
}
