#include "muonrt/optimizer.h"

#include <algorithm>

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/read_settings.hpp"
#include "api/structs.hpp"
#include "backend/cuda_device.hpp"
#include "base/processors.hpp"
#include "host/host_device.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

std::unique_ptr<Device> api::make_device(const OptimizerSettings& settings) {
  if (settings.device == DeviceKind::kCuda) {
    return make_cuda_device(settings.device_index, {.naive_products = settings.portable_gemm,
                                                    .symmetric = settings.symmetric,
                                                    .graphs = settings.graphs,
                                                    .reserved_sms = settings.reserved_sms,
                                                    .allocator = settings.allocator});
  }
  const Processors own = own_processors();
  return host::make_host_device({settings.threads > 0 ? settings.threads : threads_of({&own, 1}, 0),
                                 settings.portable_gemm, settings.allocator});
}

extern "C" {

muonrt_status_t muonrt_optimizer_create(muonrt_optimizer_t** optimizer, muonrt_comm_t* comm,
                                        const muonrt_optimizer_options_t* options,
                                        const muonrt_group_t* groups, int32_t n_groups,
                                        const muonrt_param_t* params, int64_t n_params) {
  return as_status([&] {
    if (optimizer) *optimizer = nullptr;
    const api::CommCall call(comm, "muonrt_optimizer_create");
    api::CommBody& c = call.body();
    std::unique_ptr<muonrt_optimizer> handle;
    auto made = Optimizer::create(
        c.for_optimizer(),
        [&] {
          // If this call throws, all ranks return the error.
          handle = std::make_unique<muonrt_optimizer>();
          require_pointer(optimizer, "muonrt_optimizer_create", "optimizer");
          return api::read_settings(options, groups, n_groups, params, n_params, c.host.rank(),
                                    c.host.size());
        },
        api::make_device);
    handle->body = std::move(made);
    *optimizer = api::release_handle(std::move(handle));
    return Status::kOk;
  });
}

void muonrt_optimizer_destroy(muonrt_optimizer_t* optimizer) {
  as_status([&] {
    api::destroy_handle(optimizer, "muonrt_optimizer_destroy", "optimizer",
                        &muonrt_optimizer::saving, &muonrt_optimizer::state_shards);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_set_grad(muonrt_optimizer_t* optimizer, int64_t param,
                                          const void* grad) {
  return as_status([&] {
    api::unwrap_idle(optimizer, "muonrt_optimizer_set_grad").set_grad(param, grad);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_set_grads(muonrt_optimizer_t* optimizer, const void* const* grads,
                                           int64_t n) {
  return as_status([&] {
    Optimizer& o = api::unwrap_idle(optimizer, "muonrt_optimizer_set_grads");
    const auto count = static_cast<int64_t>(o.settings().params.size());
    require_pointer(grads, "muonrt_optimizer_set_grads", "grads");
    MUONRT_REQUIRE(n == count, Status::kInvalidArgument, "muonrt_optimizer_set_grads: n is ", n,
                   ", but there are ", count, " parameters; pass one gradient for each");
    for (int64_t i = 0; i < n; ++i) o.check_grad(i, grads[i]);
    for (int64_t i = 0; i < n; ++i) o.set_grad(i, grads[i]);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_set_data(muonrt_optimizer_t* optimizer, int64_t param,
                                          void* data) {
  return as_status([&] {
    api::unwrap_idle(optimizer, "muonrt_optimizer_set_data").set_data(param, data);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_reset_masters(muonrt_optimizer_t* optimizer, const int64_t* params,
                                               int64_t n) {
  return as_status([&] {
    Optimizer& o = api::unwrap_idle(optimizer, "muonrt_optimizer_reset_masters");
    MUONRT_REQUIRE(n >= 0 && (params || n == 0), Status::kInvalidArgument,
                   "muonrt_optimizer_reset_masters: n is ", n, " with params ",
                   params ? "set" : "NULL", "; pass n indices, or 0 and NULL for all parameters");
    std::vector<int64_t> list(params, params + n);
    if (!params)
      for (int64_t i = 0; i < std::ssize(o.settings().params); ++i) list.push_back(i);
    o.reset_masters(list);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_set_group(muonrt_optimizer_t* optimizer, int32_t index,
                                           const muonrt_group_t* group) {
  return as_status([&] {
    Optimizer& o = api::unwrap_idle(optimizer, "muonrt_optimizer_set_group");
    require_pointer(group, "muonrt_optimizer_set_group", "group");
    o.set_group(index, api::read_group(group, cat("group ", index), false));
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_find_param(int64_t* index, const muonrt_optimizer_t* optimizer,
                                            const char* name) {
  return as_status([&] {
    const Optimizer& o = api::unwrap(optimizer, "muonrt_optimizer_find_param");
    require_pointer(name, "muonrt_optimizer_find_param", "name");
    require_pointer(index, "muonrt_optimizer_find_param", "index");
    *index = o.find(name);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_get_step(int64_t* step, const muonrt_optimizer_t* optimizer) {
  return as_status([&] {
    const Optimizer& o = api::unwrap(optimizer, "muonrt_optimizer_get_step");
    require_pointer(step, "muonrt_optimizer_get_step", "step");
    *step = o.steps();
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_set_step(muonrt_optimizer_t* optimizer, int64_t step) {
  return as_status([&] {
    api::unwrap_idle(optimizer, "muonrt_optimizer_set_step").set_steps(step);
    return Status::kOk;
  });
}

}  // extern "C"
