// A library that exports NCCL's functions. The functions do nothing. The library is built twice,
// once without ncclCommSplit.

#define MUONRT_STUB(name) \
  extern "C" __attribute__((visibility("default"))) int name() { return 5; }

extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 23099;
  return 0;
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetErrorString(int) {
  return "an error of the stub";
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetLastError(void*) { return ""; }
MUONRT_STUB(ncclGetUniqueId)
MUONRT_STUB(ncclCommInitRankConfig)
#ifndef MUONRT_STUB_WITHOUT_SPLIT
MUONRT_STUB(ncclCommSplit)
#endif
MUONRT_STUB(ncclCommFinalize)
MUONRT_STUB(ncclCommDestroy)
MUONRT_STUB(ncclCommAbort)
MUONRT_STUB(ncclCommGetAsyncError)
MUONRT_STUB(ncclCommCount)
MUONRT_STUB(ncclCommUserRank)
MUONRT_STUB(ncclCommCuDevice)
MUONRT_STUB(ncclSend)
MUONRT_STUB(ncclRecv)
MUONRT_STUB(ncclAllReduce)
MUONRT_STUB(ncclGroupStart)
MUONRT_STUB(ncclGroupEnd)
