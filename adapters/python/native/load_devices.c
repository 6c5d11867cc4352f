/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Storages that map_location sends to a device that Berth knows: PyTorch allocates them there, and
 * the bytes get there through staging buffers. All others take the way of load_tensors.c.
 */
#include "adapters/python/native/native.h"

/* The storages of one load, and what berth._device.places made for them. */
typedef struct placed {
    const berth_storage **storages;
    const berth_tensor **tensors; /* one that views each; of all in turn, once they are placed */
    size_t n;
    berth_storage_choice *choices;
    bpy_map by_storage; /* storage -> its choice */
} placed;

/* Those that do not stay on the host, each once. Empty ones need no bytes. */
static int find_storages(const bpy_loader *loader, placed *all, PyObject *wanted)
{
    berth_checkpoint *handle = loader->checkpoint->handle;
    berth_named_tensor named;
    berth_error error;
    for (size_t i = 0; i < berth_tensor_count(handle); i++) {
        if (berth_tensor_at(handle, i, &named, &error) < 0)
            return bpy_raise(&error), -1;
        const berth_storage *storage = named.tensor->storage;
        const berth_storage_info *info = storage ? berth_storage_get_info(storage) : NULL;
        if (!info || info->nbytes == 0 || bpy_stays_on_host(loader, storage) ||
            bpy_map_get(&all->by_storage, storage))
            continue;
        PyObject *location = bpy_location_of(storage);
        PyObject *item =
            location ? Py_BuildValue("(KO)", (unsigned long long)info->nbytes, location) : NULL;
        Py_XDECREF(location);
        int status = item ? PyList_Append(wanted, item) : -1;
        Py_XDECREF(item);
        if (status < 0 || bpy_map_set(&all->by_storage, storage, &all->choices[all->n]) < 0)
            return -1;
        all->storages[all->n] = storage;
        all->tensors[all->n++] = named.tensor;
    }
    return 0;
}

/* One storage of berth._device.places; None: it takes the other way. */
static int set_choice(bpy_loader *loader, const berth_storage *storage, PyObject *place,
                      berth_storage_choice *choice)
{
    PyObject *untyped, *owner;
    unsigned long long address, ready;
    if (place == Py_None)
        return 0;
    if (!PyArg_ParseTuple(place, "OKsKO", &untyped, &address, &choice->device, &ready, &owner))
        return -1;
    choice->address = (uintptr_t)address;
    choice->nbytes = berth_storage_get_info(storage)->nbytes;
    choice->ready = (void *)(uintptr_t)ready;
    return bpy_loader_set_storage(loader, storage, untyped);
}

/* Leaves the tensors of placed storages only. */
static int set_choices(bpy_loader *loader, placed *all, PyObject *places)
{
    size_t n = 0;
    for (size_t i = 0; i < all->n; i++) {
        PyObject *place = PyList_GetItem(places, (Py_ssize_t)i);
        if (!place || set_choice(loader, all->storages[i], place, &all->choices[i]) < 0)
            return -1;
        if (all->choices[i].device)
            all->tensors[n++] = all->tensors[i];
    }
    all->n = n;
    return 0;
}

static int choose(void *context, const berth_storage *storage, berth_storage_choice *choice)
{
    const berth_storage_choice *made = bpy_map_get(context, storage);
    if (made && made->device) {
        berth_load_method method = choice->method;
        *choice = *made;
        choice->method = method;
    }
    return 0;
}

static int load(bpy_loader *loader, placed *all)
{
    const berth_storage_rule rule = {.choose = choose, .context = &all->by_storage};
    const berth_selection selection = {.tensors = all->tensors, .n_tensors = all->n};
    const berth_params params = {.progress = bpy_check_signals};
    berth_checkpoint *handle = loader->checkpoint->handle;
    berth_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = berth_set_storage_rules(handle, &rule, 1, &error);
    if (status == 0)
        status = berth_load(handle, &selection, &params, &error);
    Py_END_ALLOW_THREADS;
    if (status < 0 && !PyErr_Occurred())
        bpy_raise(&error);
    return status < 0 ? -1 : 0;
}

/* `places` has the storages and the events until the load has ended. */
static int place_and_load(bpy_loader *loader, placed *all, PyObject *wanted)
{
    if (find_storages(loader, all, wanted) < 0 || all->n == 0)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *places = PyObject_CallFunctionObjArgs(loader->places, wanted, NULL);
    int status = places ? set_choices(loader, all, places) : -1;
    if (status == 0 && all->n > 0)
        status = load(loader, all);
    Py_XDECREF(places);
    return status;
}

static bool all_stay_on_host(const bpy_loader *loader, const berth_checkpoint *handle)
{
    const berth_storage *storage = berth_storage_next(handle, NULL);
    while (storage && bpy_stays_on_host(loader, storage))
        storage = berth_storage_next(handle, storage);
    return !storage;
}

/* Whether some may go to devices, and can: none is deflated, or a view of another one. */
static int may_be_placed(const bpy_loader *loader)
{
    berth_checkpoint *handle = loader->checkpoint->handle;
    berth_info info;
    berth_error error;
    if (!loader->places || loader->is_meta || all_stay_on_host(loader, handle))
        return 0;
    if (berth_get_info(handle, &info, &error) < 0)
        return bpy_raise(&error), -1;
    return info.n_deflated == 0 && strcmp(info.container, "legacy") != 0;
}

int bpy_load_to_devices(bpy_loader *loader)
{
    int may_be = may_be_placed(loader);
    if (may_be <= 0)
        return may_be;
    size_t n = berth_tensor_count(loader->checkpoint->handle) + 1;
    placed all = {.storages = PyMem_Calloc(n, sizeof *all.storages),
                  .tensors = PyMem_Calloc(n, sizeof *all.tensors),
                  .choices = PyMem_Calloc(n, sizeof *all.choices)};
    PyObject *wanted = PyList_New(0);
    int status = -1;
    if (all.storages && all.tensors && all.choices && wanted)
        status = place_and_load(loader, &all, wanted);
    else if (wanted)
        PyErr_NoMemory();
    Py_XDECREF(wanted);
    bpy_map_free(&all.by_storage);
    PyMem_Free(all.storages);
    PyMem_Free(all.tensors);
    PyMem_Free(all.choices);
    return status;
}
