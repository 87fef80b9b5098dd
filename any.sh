date +%F
node -e 'console.log(new Date().toISOString().slice(0,10)); const t=performance.now(); setTimeout(async()=>{const ms=performance.now()-t; console.error("timeout ms",ms); const r=await fetch("https://api.model.example/v1/chat/completions",{method:"POST",headers:{"content-type":"application/json"},body:JSON.stringify({model:"m",messages:[{role:"user",content:"node"}]})}); console.log((await r.json()).choices[0].message.content)},100)'
curl -sS https://api.model.example/v1/chat/completions -H 'content-type: application/json' -d '{"model":"m","messages":[{"role":"user","content":"curl"}]}' | head -c 300; echo
python3 - <<'P'
import time,threading,asyncio,datetime,json,urllib.request
print(datetime.date.today()); time.sleep(0.05); e=threading.Event(); e.wait(0.05)
asyncio.run(asyncio.sleep(0.05))
b=json.dumps({"model":"m","messages":[{"role":"user","content":"py"}]}).encode()
print(json.load(urllib.request.urlopen(urllib.request.Request("https://api.model.example/v1/chat/completions",b,{"content-type":"application/json"}),timeout=20))["choices"][0]["message"]["content"])
P
rm -rf r; git init -q r; cd r; git -c user.name=a -c user.email=b commit -q --allow-empty -m x; git log --format=%ad --date=short; cd ..
perl -MPOSIX -e 'print strftime("%F\n", localtime)'
echo 'class D{public static void main(String[] a)throws Exception{Thread.sleep(50);System.out.println(java.time.LocalDate.now());}}' > D.java; java D.java
bash -c 'printf "%(%F)T\n"; sleep 0.1; timeout 0.1 sleep 4; echo $?'
