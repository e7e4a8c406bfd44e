// A profiler for tests. NVTX loads this library if the environment variable NVTX_INJECTION64_PATH
// names it. For each range that begins or ends, the library adds a line to the file that
// MUONRT_TEST_RANGES names. Threads are numbered in the order of their first ranges. A line has one
// of two forms:
//   thread push domain payload text
//   thread pop domain

#include <nvtx3/nvToolsExt.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>

namespace {

std::FILE* file = nullptr;
std::mutex mutex;

int thread_number() {
  static std::atomic<int> last = 0;
  thread_local const int number = last++;
  return number;
}

/// Returns the name of a domain. The handle of a domain is the address of its name, and null means
/// the default domain.
const char* name_of(nvtxDomainHandle_t domain) {
  return domain ? reinterpret_cast<const std::string*>(domain)->c_str() : "default";
}

int push(nvtxDomainHandle_t domain, const char* payload, const char* text) {
  const std::lock_guard lock(mutex);
  std::fprintf(file, "%d push %s %s %s\n", thread_number(), name_of(domain), payload, text);
  std::fflush(file);
  return 0;
}

int pop(nvtxDomainHandle_t domain) {
  const std::lock_guard lock(mutex);
  std::fprintf(file, "%d pop %s\n", thread_number(), name_of(domain));
  std::fflush(file);
  return 0;
}

nvtxDomainHandle_t NVTX_API domain_create(const char* name) {
  static std::deque<std::string> names;
  const std::lock_guard lock(mutex);
  return reinterpret_cast<nvtxDomainHandle_t>(&names.emplace_back(name));
}
int NVTX_API domain_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
  const bool number = range->payloadType == NVTX_PAYLOAD_TYPE_INT64;
  const bool text = range->messageType == NVTX_MESSAGE_TYPE_ASCII;
  return push(domain, number ? std::to_string(range->payload.llValue).c_str() : "-",
              text ? range->message.ascii : "?");
}
int NVTX_API domain_pop(nvtxDomainHandle_t domain) { return pop(domain); }
int NVTX_API push_ex(const nvtxEventAttributes_t* range) { return domain_push(nullptr, range); }
int NVTX_API push_a(const char* text) { return push(nullptr, "-", text); }
int NVTX_API pop_any() { return pop(nullptr); }

template <class Function>
void put(NvtxFunctionTable table, int at, Function* function) {
  *table[at] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

/// NVTX calls this function before the program's first range. The return value 0 means that no
/// profiler is attached.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) {
  const char* const path = std::getenv("MUONRT_TEST_RANGES");
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable core = nullptr, domains = nullptr;
  unsigned int size = 0;
  if (!path || !callbacks ||
      !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &core, &size) ||
      !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &domains, &size))
    return 0;
  file = std::fopen(path, "w");
  if (!file) return 0;
  put(core, NVTX_CBID_CORE_RangePushEx, push_ex);
  put(core, NVTX_CBID_CORE_RangePushA, push_a);
  put(core, NVTX_CBID_CORE_RangePop, pop_any);
  put(domains, NVTX_CBID_CORE2_DomainCreateA, domain_create);
  put(domains, NVTX_CBID_CORE2_DomainRangePushEx, domain_push);
  put(domains, NVTX_CBID_CORE2_DomainRangePop, domain_pop);
  return 1;
}
