/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * save_records_begin(records, target, archive_name, byteorder_last, snapshot, base): records that
 * PyTorch has pickled, as (name, data, nbytes, owner). data is bytes, the address of the owner's
 * memory, None for zeros, or a tuple: its address on a device, the device's name, the event to wait
 * for.
 */
#include <berth/device.h>

#include "adapters/python/native/native.h"

/* What skip_data leaves out: PyTorch writes zeros, and no CRC. */
static int read_zeros(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    (void)offset;
    memset(buffer, 0, nbytes);
    return 0;
}

/* Memory of a device, as a storage of the saver's tree. */
static int set_device_record(bpy_saver *saver, berth_new_record *record, PyObject *place)
{
    unsigned long long address, ready;
    const char *location;
    berth_error error;
    if (!PyArg_ParseTuple(place, "KsK", &address, &location, &ready))
        return -1;
    if (!saver->tree)
        saver->tree = berth_tree_new(&error);
    if (!saver->tree)
        return bpy_raise(&error), -1;
    record->storage = berth_device_storage_new(saver->tree, BERTH_DTYPE_NONE, (uintptr_t)address,
                                               record->nbytes, location, (void *)(uintptr_t)ready);
    if (berth_tree_error(saver->tree, &error) < 0)
        return bpy_raise(&error), -1;
    return 0;
}

static int set_record(bpy_saver *saver, berth_new_record *record, PyObject *item)
{
    PyObject *data, *owner;
    unsigned long long nbytes;
    if (!PyArg_ParseTuple(item, "sOKO", &record->name, &data, &nbytes, &owner))
        return -1;
    record->nbytes = nbytes;
    if (data == Py_None) {
        record->read = read_zeros;
        record->no_crc32 = true;
    } else if (PyTuple_Check(data)) {
        return set_device_record(saver, record, data);
    } else if (PyBytes_Check(data)) {
        record->data = PyBytes_AsString(data);
    } else {
        record->data = PyLong_AsVoidPtr(data);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* The records of a tuple; NULL: an exception is raised. To be freed. */
static berth_new_record *records_of(bpy_saver *saver, PyObject *tuple, size_t n)
{
    berth_new_record *records = PyMem_Calloc(n + 1, sizeof *records);
    if (!records)
        return PyErr_NoMemory(), NULL;
    for (size_t i = 0; i < n; i++) {
        if (set_record(saver, &records[i], PyTuple_GetItem(tuple, (Py_ssize_t)i)) < 0) {
            PyMem_Free(records);
            return NULL;
        }
    }
    return records;
}

PyObject *bpy_save_records_begin(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *list, *target;
    const char *archive_name;
    int byteorder_last, snapshot;
    bpy_saver saver = {0};
    if (!PyArg_ParseTuple(arguments, "OOzpp|y", &list, &target, &archive_name, &byteorder_last,
                          &snapshot, &saver.base))
        return NULL;
    PyObject *tuple = PySequence_Tuple(list); /* nobody can change it meanwhile */
    if (!tuple || bpy_saver_keep(&saver, tuple) < 0)
        return NULL;
    size_t n = (size_t)PyTuple_Size(tuple);
    berth_new_record *records = records_of(&saver, tuple, n);
    if (!records) {
        bpy_saver_free(&saver);
        return NULL;
    }
    const berth_content content =
        berth_of_records(records, n, byteorder_last ? BERTH_RECORDS_BYTEORDER_LAST : 0);
    PyObject *job =
        bpy_job_begin(&saver, target, &content, archive_name, snapshot ? BERTH_SAVE_SNAPSHOT : 0);
    PyMem_Free(records);
    return job;
}
