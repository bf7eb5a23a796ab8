// The dashboard's style sheet: both themes from one set of colours, wide and narrow from one set of tables.

export const style = /* css */ `
:root{color-scheme:light dark;
--bg:light-dark(#fff,#0d1117);--raised:light-dark(#f6f8fa,#151b23);--line:light-dark(#d1d9e0,#30363d);--edge:light-dark(#818b98,#6e7681);
--text:light-dark(#1b1f24,#e6edf3);--muted:light-dark(#57606a,#9198a1);
--ready:light-dark(#0550ae,#79c0ff);--running:light-dark(#6639ba,#d2a8ff);--retrying:light-dark(#7d4e00,#e3b341);
--done:light-dark(#116329,#56d364);--dead:light-dark(#a40e26,#ff938a);
--badbg:light-dark(#fff1f0,#2a1618);--warnbg:light-dark(#fff8e5,#272115);--link:var(--ready)}
:root[data-theme=light]{color-scheme:light}
:root[data-theme=dark]{color-scheme:dark}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--text);font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
a{color:var(--link);text-decoration-thickness:1px;text-underline-offset:2px}
h1,h2,h3{line-height:1.25;margin:0;font-weight:600}
h1{font-size:1.5rem}h2{font-size:1.05rem}h3{font-size:.95rem}
p{margin:.5rem 0}
kbd,code,pre,.id,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.92em}
kbd{border:1px solid var(--edge);border-radius:4px;padding:0 .3em;background:var(--raised)}
:focus-visible{outline:2px solid var(--link);outline-offset:2px}
main:focus{outline:none}
[hidden]{display:none!important}
.vh{position:absolute;width:1px;height:1px;margin:-1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
.skip{position:absolute;left:-999px;top:0;background:var(--bg);padding:.5rem 1rem;z-index:9}
.skip:focus{left:0}
.m{color:var(--muted)}.bad{color:var(--dead)}.warn{color:var(--retrying)}.good{color:var(--done)}
header{border-bottom:1px solid var(--line);background:var(--raised);border-top:4px solid transparent}
.stripe-red{border-top-color:#d1242f}.stripe-orange{border-top-color:#bc4c00}.stripe-green{border-top-color:#1a7f37}
.stripe-blue{border-top-color:#0969da}.stripe-purple{border-top-color:#8250df}
.bar{display:flex;flex-wrap:wrap;align-items:center;gap:.35rem 1rem;padding:.45rem 1.25rem}
.bar.tools{padding-top:0;gap:.35rem .9rem;font-size:.93em}
.push{flex:1}
.brand{font-weight:700;color:var(--text);text-decoration:none;font-size:1.05rem;min-height:24px}
nav ul{display:flex;flex-wrap:wrap;gap:.1rem .2rem;list-style:none;margin:0;padding:0}
nav li a{display:block;padding:.25rem .6rem;border-radius:6px;color:var(--text);text-decoration:none}
nav li a:hover{background:var(--line)}
nav [aria-current=page]{background:var(--bg);box-shadow:inset 0 0 0 1px var(--edge);font-weight:600}
.badge{display:inline-block;padding:0 .45em;border-radius:1em;border:1px solid currentColor;color:var(--dead);font-size:.85em;font-weight:600}
.tools form,.tools label{display:inline-flex;align-items:center;gap:.4rem;margin:0}
.switch{display:inline-flex;border:1px solid var(--edge);border-radius:6px;overflow:hidden}
.switch a{padding:.1rem .5rem;min-height:24px;color:var(--text);text-decoration:none}
.switch a:focus-visible{outline-offset:-2px}
.switch [aria-current]{background:var(--text);color:var(--bg)}
.btn,button,select,input:not([type=checkbox]):not([type=radio]){font:inherit;color:var(--text);background:var(--bg);border:1px solid var(--edge);border-radius:6px;padding:.2rem .6rem;min-height:28px}
select,input{max-width:100%}
.btn,button{display:inline-block;white-space:nowrap;cursor:pointer;text-decoration:none;line-height:1.35}
.btn:hover,button:hover{background:var(--raised);border-color:var(--text)}
.btn.primary{background:var(--text);color:var(--bg);border-color:var(--text)}
.btn.danger{color:var(--dead);border-color:var(--dead)}
button.danger.primary{background:var(--dead);color:var(--bg)}
input[type=checkbox]{width:18px;height:18px;margin:3px;vertical-align:middle;accent-color:var(--ready)}
main{padding:1rem 1.25rem 3rem;max-width:1760px;margin:0 auto}
.title{display:flex;flex-wrap:wrap;gap:.3rem 1rem;align-items:baseline;margin-bottom:.75rem}
main section,main>div,main>form,main>details,[data-region]>section{margin-bottom:1.25rem}
header [data-region]{margin:0}
.note{border:1px solid currentColor;border-left-width:4px;border-radius:6px;padding:.5rem .8rem;margin:0 0 .75rem}
.note.bad{background:var(--badbg)}.note.warn{background:var(--warnbg)}
.note a,.note .btn{margin-left:.4rem}
.empty{padding:1rem;border:1px dashed var(--edge);border-radius:6px;color:var(--muted)}
.empty+.empty,table+.empty{margin-top:.8rem}
.empty pre{color:var(--text)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.6rem;list-style:none;padding:0;margin:0}
.tiles li,.card{border:1px solid var(--line);border-radius:8px;padding:.6rem .8rem;background:var(--raised)}
.tiles .big{display:block;font-size:1.55rem;font-weight:600;line-height:1.2;color:var(--text);text-decoration:none}
.tiles .big:hover{text-decoration:underline}
.card>h2,section>h2{margin-bottom:.5rem}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem;align-items:start}
.two>*{min-width:0}
.head{display:flex;flex-wrap:wrap;gap:.3rem .8rem;align-items:baseline;margin-bottom:.5rem}
.state{white-space:nowrap;font-weight:600}
.s-ready,.tiles .s-ready{color:var(--ready)}.s-running,.tiles .s-running{color:var(--running)}.s-retrying,.tiles .s-retrying{color:var(--retrying)}.s-done{color:var(--done)}.s-dead,.tiles .s-dead{color:var(--dead)}
.s-scheduled,.s-blocked,.s-discarded,.s-cancelled{color:var(--muted)}
table+table{margin-top:1.2rem}
table{border-collapse:collapse;width:100%}
caption{text-align:left;font-weight:600;padding:.2rem 0 .4rem}
th{font-weight:600;text-align:left;white-space:nowrap;color:var(--muted);font-size:.9em}
th,td{padding:.35rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
td>.n,td>a.id,td>a.mono,dd>.n{display:inline-block;min-width:24px;min-height:24px}
td .id,td .state,td time,td .k{white-space:nowrap}
.num{text-align:right;white-space:nowrap}
.grow{width:40%}
td.name{min-width:9rem}
tbody tr:hover td,tr.cur td{background:var(--raised)}
tr.cur td:first-child{box-shadow:inset 3px 0 0 var(--link)}
tr:has(+tr.below) td{border-bottom:0;padding-bottom:.1rem}
tr.below td{padding-top:0}
tr.t-bad td:first-child{box-shadow:inset 3px 0 0 var(--dead)}
.prev{color:var(--muted);font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.86em}
form.filter{display:flex;flex-wrap:wrap;gap:.5rem .7rem;align-items:end}
.field{display:flex;flex-direction:column;gap:.1rem;min-width:0}
.field>span,.field>label{font-size:.86em;color:var(--muted)}
.field input{width:12rem}.field select{max-width:15rem}
details.fold>summary{display:none}
.pager{display:flex;flex-wrap:wrap;gap:.5rem;align-items:center;justify-content:flex-end;margin:.5rem 0}
.acts{display:flex;flex-wrap:wrap;gap:.4rem;align-items:center}
.acts form{margin:0}
.bulk{position:sticky;bottom:0;background:var(--bg);border:1px solid var(--line);border-radius:8px 8px 0 0;padding:.5rem .8rem;z-index:2}
pre{margin:0;padding:.7rem;background:var(--raised);border:1px solid var(--line);border-radius:6px;overflow:auto;max-height:28rem;white-space:pre}
pre.wrap,.wrap pre{white-space:pre-wrap}
summary{cursor:pointer;padding:.15rem 0;min-height:24px}
.scroll{overflow:auto;max-height:20rem}
dl.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,15rem),1fr));gap:.5rem 1.2rem;margin:0}
dl.facts.tight{grid-template-columns:repeat(auto-fill,minmax(6.5rem,1fr))}dl.facts div{min-width:0}dl.facts dt,dl.keys dt{color:var(--muted);font-size:.86em}dl.facts dd,dl.keys dd{margin:0}
dl.keys div{display:grid;grid-template-columns:11rem 1fr;padding:.15rem 0}
dialog{color:var(--text);background:var(--bg);border:1px solid var(--edge);border-radius:10px;padding:1.2rem;width:min(34rem,calc(100vw - 2rem));max-height:calc(100vh - 2rem);overflow:auto}
dialog::backdrop{background:rgb(0 0 0/.5)}
.ask{max-width:42rem}
.ask .acts{margin-top:1rem}
.ask ul{max-height:12rem;overflow:auto}
.ask .field{margin:.6rem 0}
.chart{margin:0;min-width:0}
figcaption{font-weight:600;margin-bottom:.4rem}
.plot{display:grid;grid-template-columns:auto 1fr;grid-template-rows:9rem auto;gap:.2rem .5rem}
.plot .y{display:flex;flex-direction:column;justify-content:space-between;text-align:right;font-size:.8em;color:var(--muted);margin:-.65em 0;white-space:nowrap}
.plot .x{grid-column:2;display:flex;justify-content:space-between;font-size:.8em;color:var(--muted)}
.plot svg{width:100%;height:100%;overflow:visible;display:block}
path{fill:none;vector-effect:non-scaling-stroke}
path.grid{stroke:var(--line);stroke-width:1}
path.line{stroke-width:2}
.c1{stroke:var(--ready);color:var(--ready)}.c2{stroke:var(--dead);stroke-dasharray:5 3;color:var(--dead)}.c3{stroke:var(--running);color:var(--running)}.c4{stroke:var(--retrying);stroke-dasharray:2 3;color:var(--retrying)}
path.area{stroke:none;fill:currentColor;opacity:.18}
path.bar{fill:currentColor;stroke:none}
path.bar.c2,path.bar.c4{opacity:.75}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;list-style:none;margin:.3rem 0;padding:0;font-size:.86em}
.legend svg{width:24px;height:8px;margin-right:.4rem}
.strip{display:block;width:100%;height:18px}
.strip path{fill:currentColor}
.strip .k0{color:var(--line)}.strip .k1{color:var(--edge)}.strip .k2{color:var(--done)}
.phases{display:block;width:100%;height:14px;border-radius:4px}
.p0{fill:var(--muted)}.p1{fill:var(--retrying)}.p2{fill:var(--ready)}.p3{fill:var(--running)}.p4{fill:var(--done)}.p5{fill:var(--dead)}
.sw{display:inline-block;width:10px;height:10px;border-radius:2px}
svg.sw,.legend svg.sw{width:10px;height:10px;vertical-align:-1px;margin:0 .35rem 0 0}
.loading::after{content:"";position:fixed;inset:0 0 auto;height:2px;background:var(--link);opacity:0;animation:late .2s .4s forwards}
@keyframes late{to{opacity:1}}
.stale [data-region] .n,.stale [data-region] .big{opacity:.75}
@media(pointer:coarse){.btn,button,select,input:not([type=checkbox]):not([type=radio]),nav li a,.switch a,summary,.brand{min-height:44px}.switch a,nav li a,.brand,summary{display:flex;align-items:center}input[type=checkbox]{width:26px;height:26px;margin:9px}td a.id,td .n{min-height:32px;min-width:32px}}
@media(max-width:1100px){table.list .wide{display:none}}
@media(max-width:860px){
table.list,table.list tbody{display:block}
table.list caption{display:block}
table.list thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
table.list tr{display:flex;flex-wrap:wrap;gap:.1rem .9rem;border-bottom:1px solid var(--line);padding:.5rem .3rem;align-items:baseline}
table.list tr:has(+tr.below){border-bottom:0;padding-bottom:0}
table.list tr.below{padding-top:.1rem}
table.list td{display:block;border:0;padding:0;text-align:left;max-width:100%}
table.list td.num{white-space:normal}
table.list td.lead{order:-1;font-size:1.02em}
table.list td:empty,table.list td:has(>.none){display:none}
table.list td.name{min-width:0}
table.list td:not([data-label=""])::before{content:attr(data-label) " ";color:var(--muted);font-size:.86em}
.grow{width:auto}
}
@media(max-width:640px){
dl.facts{grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr))}
.field,.field input,.field select{width:100%;max-width:none}
details.fold>summary{display:list-item;border:1px solid var(--edge);border-radius:6px;padding:.4rem .7rem;font-weight:600}
details.fold[open]>summary{margin-bottom:.5rem}
.bar,main{padding-left:.75rem;padding-right:.75rem}
.bulk{border-radius:0;margin:0 -.75rem;border-width:1px 0 0}
.push{flex-basis:100%}
}
@media(forced-colors:active){.switch [aria-current],nav [aria-current]{outline:2px solid}path.line,path.grid{stroke:CanvasText}path.bar,.strip path,.phases *{forced-color-adjust:none}}
@media(prefers-reduced-motion:reduce){*{animation-duration:.01ms!important;transition:none!important}}
@media print{header .tools,.bulk,.acts,.pager{display:none}}
`
  .replace(/\n(?=\S)/g, "")
  .trim();
