#include "ptx/kernels.hpp"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <new>

#include "block.hpp"
#include "ptx/order.hpp"
#include "ptx/program.hpp"
#include "ptx/traffic.hpp"

namespace emulator::ptx {

namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("PTX: cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Returns the mangled name with a common name for all anonymous namespaces, because each compiler
/// names them differently.
std::string plain_name(std::string name) {
  constexpr std::string_view kAnonymous = "_GLOBAL__N_";
  for (size_t at = name.find(kAnonymous); at != std::string::npos;
       at = name.find(kAnonymous, at + 1)) {
    size_t digits = at;
    while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
    const size_t length = std::stoul(name.substr(digits, at - digits));
    name.replace(digits, at - digits + length, "_");
    at = digits;
  }
  return name;
}

/// The names of this program's functions, by address.
class Symbols {
 public:
  Symbols() : image_(read_file("/proc/self/exe")) {
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* base) {  // the first entry is the program itself
          *static_cast<uintptr_t*>(base) = info->dlpi_addr;
          return 1;
        },
        &base_);
    const auto& head = at<Elf64_Ehdr>(0);
    for (int s = 0; s < head.e_shnum; ++s) {
      const auto& section =
          at<Elf64_Shdr>(head.e_shoff + static_cast<size_t>(s) * head.e_shentsize);
      if (section.sh_type == SHT_SYMTAB) read(section, head);
    }
    if (names_.empty()) throw std::runtime_error("PTX: the program has no table of its symbols");
  }

  const std::string& name_of(const void* function) const {
    const auto found = names_.find(reinterpret_cast<uintptr_t>(function));
    if (found == names_.end()) throw std::runtime_error("PTX: a kernel without a name");
    return found->second;
  }

 private:
  template <class T>
  const T& at(size_t offset) const {
    return *reinterpret_cast<const T*>(image_.data() + offset);
  }
  void read(const Elf64_Shdr& table, const Elf64_Ehdr& head) {
    const auto& strings = at<Elf64_Shdr>(head.e_shoff + size_t{table.sh_link} * head.e_shentsize);
    for (size_t i = 0; i < table.sh_size / sizeof(Elf64_Sym); ++i) {
      const auto& symbol = at<Elf64_Sym>(table.sh_offset + i * sizeof(Elf64_Sym));
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_value != 0)
        names_[base_ + symbol.st_value] = image_.data() + strings.sh_offset + symbol.st_name;
    }
  }

  std::string image_;
  uintptr_t base_ = 0;
  std::map<uintptr_t, std::string> names_;
};

const char* folder() { return std::getenv("MUONRT_EMULATED_PTX"); }

/// All functions in the .ptx files of the folder.
class Library {
 public:
  Library() {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder())) {
      if (entry.path().extension() != ".ptx") continue;
      for (auto& f : translate(read_module(read_file(entry.path())))) {
        const std::string name = plain_name(f->name);
        if (f->kernel && !kernels_.emplace(name, f.get()).second)
          throw std::runtime_error("PTX: two kernels named " + name);
        functions_.push_back(std::move(f));
      }
    }
  }
  const Function& find(const void* kernel) const {
    const std::string name = plain_name(symbols_.name_of(kernel));
    const auto found = kernels_.find(name);
    if (found == kernels_.end()) throw std::runtime_error("PTX: no kernel " + name);
    return *found->second;
  }

 private:
  Symbols symbols_;
  std::map<std::string, const Function*> kernels_;
  std::vector<std::unique_ptr<Function>> functions_;
};

const Library& library() {
  static const Library* const all = new Library();
  return *all;
}

/// The values and the local memory of a thread, which are reused from block to block.
struct Room {
  std::vector<uint64_t> slots, locals;
};
Room& room() {
  static thread_local std::vector<std::unique_ptr<Room>> of_thread;
  const size_t thread = thread_in_cluster();
  if (of_thread.size() <= thread) of_thread.resize(thread + 1);
  if (!of_thread[thread]) of_thread[thread] = std::make_unique<Room>();
  return *of_thread[thread];
}

/// The arguments of a launch, aligned for every type, as on a GPU.
struct Parameters {
  explicit Parameters(const Passed& passed)
      : bytes(static_cast<unsigned char*>(::operator new(passed.count, kAlignment))) {
    std::memcpy(bytes, passed.bytes, passed.count);
  }
  ~Parameters() { ::operator delete(bytes, kAlignment); }
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  static constexpr std::align_val_t kAlignment{128};
  unsigned char* bytes;
};

void set_specials(uint64_t* slots) {
  const auto set = [&](int first, unsigned x, unsigned y, unsigned z) {
    slots[first] = x, slots[first + 1] = y, slots[first + 2] = z;
  };
  set(kTidX, threadIdx.x, threadIdx.y, threadIdx.z);
  set(kCtaidX, blockIdx.x, blockIdx.y, blockIdx.z);
  set(kNtidX, blockDim.x, blockDim.y, blockDim.z);
  set(kNctaidX, gridDim.x, gridDim.y, gridDim.z);
  slots[kClusterRank] = block_in_cluster();
}

}  // namespace

void run(const Function& function, unsigned char* parameters, unsigned char* locals,
         uint64_t* slots) {
  std::copy(function.values.begin(), function.values.end(), slots);
  set_specials(slots);
  slots[kParameters] = reinterpret_cast<uint64_t>(parameters);
  slots[kLocal] = reinterpret_cast<uint64_t>(locals);
  Thread t{slots, &function, 0, false};
  uint64_t count = 0;
  try {
    for (; !t.ended; ++count) {
      const Instruction& i = function.code[t.next++];
      if (i.guard < 0 || (slots[i.guard] != 0) != i.unless) i.run(t, i);
    }
  } catch (const std::logic_error& error) {
    throw std::logic_error(std::string(error.what()) + ", at '" + function.sources[t.next - 1] +
                           "' of thread " + std::to_string(threadIdx.x) + ", block " +
                           std::to_string(blockIdx.x) + ", " + function.name);
  }
  if (function.kernel) traffic::note_end(function, count);
}

void begin_launch() { order::next_launch(); }

bool runs() { return folder() != nullptr; }

std::function<void()> prepare(const void* kernel, const Passed& passed, unsigned threads,
                              size_t& shared_bytes) {
  const Function& f = library().find(kernel);
  if (f.parameter_bytes != passed.count)
    throw std::runtime_error("PTX: arguments of " + std::to_string(passed.count) + " bytes, not " +
                             std::to_string(f.parameter_bytes) + ", for " + f.name);
  if (f.most_threads != 0 && threads > f.most_threads)
    throw std::runtime_error("PTX: " + std::to_string(threads) + " threads for " + f.name);
  shared_bytes += f.static_bytes;
  traffic::note_launch(f);
  return [&f, parameters = std::make_shared<Parameters>(passed)] {
    Room& mine = room();
    mine.slots.resize(std::max(mine.slots.size(), f.values.size()));
    mine.locals.resize(std::max(mine.locals.size(), f.local_bytes / sizeof(uint64_t) + 1));
    run(f, parameters->bytes, reinterpret_cast<unsigned char*>(mine.locals.data()),
        mine.slots.data());
  };
}

}  // namespace emulator::ptx
