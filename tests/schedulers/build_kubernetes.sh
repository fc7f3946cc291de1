#!/usr/bin/env bash
# A real kube-apiserver and kube-controller-manager (1.20.2) and etcd, for the tests that skip without them:
#   build_kubernetes.sh DIR && RANKPATROL_KUBERNETES_BIN=DIR/bin make drill-kubernetes
# From the source package of Debian 12, which ships only kubectl of it. Root, the network, and ten minutes of two cores.
set -euo pipefail
work=$(realpath -m "${1:?a folder to work in}")
mkdir -p "$work"/{bin,lists/partial,sources,home}
cd "$work"
apt-get update -qq
apt-get install -y -qq --no-install-recommends golang-go golang-github-modern-go-reflect2-dev dpkg-dev rsync jq make
# A list of sources of our own: the machine's is left as it is.
printf 'Types: deb-src\nURIs: http://deb.debian.org/debian\nSuites: bookworm\nComponents: main\n' > sources/src.sources
printf 'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' >> sources/src.sources
apt=(apt-get -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/sources" -o "Dir::State::lists=$work/lists")
"${apt[@]}" update -qq
[ -d src ] || { "${apt[@]}" source -qq --download-only kubernetes; dpkg-source -x kubernetes_*.dsc src; }
apt-get download -qq etcd-server
dpkg -x etcd-server_*.deb etcd
cp etcd/usr/bin/etcd bin/
cd src
# The reflect2 that it carries crashes under Go 1.18 and later when it walks a map: Debian's own is newer.
rm -f vendor/github.com/modern-go/reflect2/*.go vendor/github.com/modern-go/reflect2/*.s
cp /usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} vendor/github.com/modern-go/reflect2/
rm -f vendor/github.com/modern-go/reflect2/*_test.go
mkdir -p .go/src/k8s.io
[ -L .go/src/k8s.io/kubernetes ] || ln -s ../../.. .go/src/k8s.io/kubernetes
export GOPATH=$PWD/.go CGO_ENABLED=0 HOME=$work/home GOFLAGS=
export KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_COMMIT=debian KUBE_GIT_TREE_STATE=archive KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20
(cd .go/src/k8s.io/kubernetes && nice make WHAT="cmd/kube-apiserver cmd/kube-controller-manager")
cp _output/local/go/bin/kube-{apiserver,controller-manager} "$work/bin/"
echo "RANKPATROL_KUBERNETES_BIN=$work/bin"
