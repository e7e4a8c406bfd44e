#pragma once

#include <stdlib.h>

#include <cstdlib>
#include <string>

namespace test_support {

/// A new, empty folder. The destructor removes the folder with its contents.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/muonrt-test-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() {
    const std::string command = "rm -rf '" + path_ + "'";
    [[maybe_unused]] const int result = std::system(command.c_str());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace test_support
