#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "state/manifest.hpp"

namespace muonrt {

/// The pieces of a checkpoint, and what of them a rank needs.
class StateSources {
 public:
  /// Opens the files of the manifest. Errors: IO, CORRUPT, naming file and tensor.
  StateSources(const std::string& folder, const Manifest& manifest);
  /// The same with those of its files that are open.
  StateSources(std::vector<std::unique_ptr<PieceFile>> files, const Manifest& manifest);

  const std::vector<std::unique_ptr<PieceFile>>& files() const { return files_; }
  /// Elements of the whole tensor; of NorMuon's, lines. Of what the manifest names.
  int64_t numel(const std::string& param, int32_t kind) const;
  /// Where an element lies: "FILE: byte 17", with " and " between several; "no file" in none.
  std::string where(const std::string& param, int32_t kind, int64_t element) const;

  /// Calls `take(first, element, bytes)` for stretches of the extent, each once: those from its
  /// element `first` on, which is element `element` of the whole tensor.
  /// @param what  names it in errors. Errors: CORRUPT where elements are missing or there twice,
  ///     and as PieceFile::elements.
  using Take =
      std::function<void(int64_t first, int64_t element, std::span<const unsigned char> bytes)>;
  void read(const std::string& param, int32_t kind, const Extent& extent, const std::string& what,
            const Take& take);
  /// What was read is checked again when it is next read.
  void forget_checks();

 private:
  struct Source {
    PieceFile* file;
    const FilePiece* piece;
  };
  struct Tensor {
    int64_t numel = 0;
    std::vector<Source> sources = {};
  };
  const Tensor& at(const std::string& param, int32_t kind) const;

  std::vector<std::unique_ptr<PieceFile>> files_;
  std::map<std::pair<std::string, int32_t>, Tensor> tensors_;
};

}  // namespace muonrt
