#include "cuda/nccl_api.hpp"

#include <dlfcn.h>

#include "base/error.hpp"

namespace muonrt::cuda {

namespace {

constexpr int kOldest = 21900;

void* open_library(const char* const* names, int count) {
  std::string why;
  for (const int flags : {RTLD_LAZY | RTLD_NOLOAD, RTLD_LAZY | RTLD_LOCAL}) {
    for (int i = 0; i < count; ++i) {
      if (void* const library = dlopen(names[i], flags)) return library;
      const char* const text = dlerror();
      why = text ? text : "unknown reason";
    }
  }
  throw Error(
      Status::kNotSupported,
      cat("NCCL cannot be loaded (", why,
          "); install libnccl.so.2 where the loader finds it, or use a staged communicator"));
}

template <class Function>
void resolve(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  MUONRT_REQUIRE(function, Status::kNotSupported, "NCCL has no function ", name,
                 " (it is older than 2.19); install a newer one");
}

}  // namespace

NcclApi load_nccl(const char* const* names, int count) {
  void* const library = open_library(names, count);  // stays for the life of the process
  NcclApi api;
  resolve(library, api.get_version, "ncclGetVersion");
  resolve(library, api.get_unique_id, "ncclGetUniqueId");
  resolve(library, api.init, "ncclCommInitRankConfig");
  resolve(library, api.split, "ncclCommSplit");
  resolve(library, api.finalize, "ncclCommFinalize");
  resolve(library, api.destroy, "ncclCommDestroy");
  resolve(library, api.abort, "ncclCommAbort");
  resolve(library, api.async_error, "ncclCommGetAsyncError");
  resolve(library, api.count, "ncclCommCount");
  resolve(library, api.user_rank, "ncclCommUserRank");
  resolve(library, api.device, "ncclCommCuDevice");
  resolve(library, api.error_string, "ncclGetErrorString");
  resolve(library, api.last_error, "ncclGetLastError");
  resolve(library, api.send, "ncclSend");
  resolve(library, api.receive, "ncclRecv");
  resolve(library, api.all_reduce, "ncclAllReduce");
  resolve(library, api.group_start, "ncclGroupStart");
  resolve(library, api.group_end, "ncclGroupEnd");
  int version = 0;
  const NcclResult result = api.get_version(&version);
  MUONRT_REQUIRE(result == kNcclSuccess && version >= kOldest, Status::kNotSupported,
                 "NCCL says it has version ", nccl_version_text(version),
                 " (2.19 or later is needed); install a newer one");
  return api;
}

const NcclApi& nccl_api() {
  static constexpr const char* kNames[] = {"libnccl.so.2", "libnccl.so"};
  static const NcclApi api = load_nccl(kNames, 2);
  return api;
}

std::string nccl_version_text(int version) {
  return cat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

}  // namespace muonrt::cuda
